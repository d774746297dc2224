# Sourced: a scratch folder, `check WHAT CONDITION...`, `wait_for FILE`, `finish`.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
# Open MPI's own: another mpirun of this user would clear away the folder that all share, and a killed one leaves things there.
mkdir "$scratch/.tmp"
export TMPDIR=$scratch/.tmp
trap 'rm -rf "$scratch"' EXIT
failures=0

check() {
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what ($*)"
    failures=$((failures + 1))
  fi
}
contains() { [[ $1 == *"$2"* ]]; }
lacks() { [[ $1 != *"$2"* ]]; }
# in_time WHAT MILLISECONDS LIMIT: where more than two processes want each core, the limit grows with them, as what such a
# machine takes is not the program's; what these limits are there to find waits for a minute or for ever.
in_time() {
  local -i wanting load cores limit=$3
  cores=$(nproc)
  read -r load wanting <<<"$(sed 's/^\([0-9]*\)\.[^ ]* .* \([0-9]*\)\/.*/\1 \2/' /proc/loadavg)"
  if ((load > wanting)); then wanting=load; fi
  if ((wanting > 2 * cores)); then limit=$((limit * wanting / (2 * cores))); fi
  check "$1: within $limit ms ($2 ms)" [ "$2" -lt $limit ]
}
wait_for() {
  local -i end=$((SECONDS + 120))
  while ((SECONDS < end)); do
    [ ! -e "$1" ] || return 0
    sleep 0.05
  done
  echo "FAILED: $1 never appeared"
  exit 1
}
finish() { [ "$failures" = 0 ] || exit 1; }
