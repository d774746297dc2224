# Sourced by scripts/bench_pytorch.sh and scripts/compare_learning.sh: a Python that has PyTorch, and the binary.
# Both functions leave their answer in a variable: $python, $train.

# find_python [INTERPRETER]: an interpreter that has the packages already, else a virtual environment made from
# requirements.txt in build/pytorch-python and kept. PYTHON names the interpreter that makes it.
find_python() {
  python=${1-}
  if [ -n "$python" ]; then
    "$python" -c 'from importlib.util import find_spec
raise SystemExit(not all(map(find_spec, ("matplotlib", "numpy", "torch", "transformers"))))' || {
      echo "$python lacks what scripts/pytorch/requirements.txt names." >&2
      exit 3
    }
    return
  fi
  local wanted=scripts/pytorch/requirements.txt place=$PWD/build/pytorch-python
  if ! cmp -s "$wanted" "$place/requirements.txt"; then
    echo "making a virtual environment with PyTorch in $place (once; some minutes)" >&2
    rm -rf "$place"
    "${PYTHON:-python3}" -m venv "$place" || {
      echo "python3 cannot make a virtual environment (Debian: apt-get install python3-venv python3-dev)." >&2
      exit 3
    }
    "$place/bin/pip" install --quiet --requirement "$wanted" || exit 3
    cp "$wanted" "$place/"
  fi
  python=$place/bin/python
}

# find_train [BINARY]: the one named, else build/cpu-release/train, built if it is missing or old.
find_train() {
  train=${1-}
  if [ -z "$train" ]; then
    scripts/setup.sh
    [ -f build/cpu-release/CMakeCache.txt ] || cmake --preset cpu-release -DTRIREME_TESTS=OFF >&2 || exit 3
    cmake --build --preset cpu-release --target train >&2 || exit 3
    train=build/cpu-release/train
  fi
  [ -x "$train" ] || { echo "$train is missing or cannot be run." >&2; exit 3; }
  train=$(realpath "$train")
}

# take_options ARGUMENTS: reads --python and --train, finds both, and leaves the other arguments in $rest. Paths stay
# those of the caller's directory.
take_options() {
  local interpreter='' binary=''
  rest=()
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
      --python) interpreter=$2; shift 2 ;;
      --train) binary=$(realpath -m "$2"); shift 2 ;;
      -*)
        # Told before anything is built: an option that the script's header does not name.
        sed -n '2,/^set /p' "$0" | grep -q -e "\[$1[] ]" || { echo "$0: $1: not known (--help)" >&2; exit 2; }
        rest+=("$1"); shift ;;
      *) rest+=("$1"); shift ;;
    esac
  done
  find_train "$binary"
  find_python "$interpreter"
  export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
}
