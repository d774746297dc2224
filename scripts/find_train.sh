# shellcheck shell=bash
# Sourced: find_train SCRIPTS prints where the binary is that belongs to that folder of scripts: TRIREME_TRAIN, the one built in
# this tree, the one of the prefix that they are installed in, or the one on the PATH. Where there is none it says so, ends with 3.
find_train() {
  local candidate
  if [ -n "${TRIREME_TRAIN-}" ]; then
    if [ -x "$TRIREME_TRAIN" ]; then realpath -s "$TRIREME_TRAIN" && return; fi
    echo "TRIREME_TRAIN=$TRIREME_TRAIN is no program" >&2
    return 3
  fi
  for candidate in "$1/../build/cpu-release/train" "$1/../../../bin/train" "$(type -P train)"; do
    if [ -x "$candidate" ]; then realpath -s "$candidate" && return; fi
  done
  echo "train is missing. Build it (cmake --preset cpu-release && cmake --build --preset cpu-release) or set TRIREME_TRAIN." >&2
  return 3
}
