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
# in_time WHAT MILLISECONDS: what these limits are there to find waits for a minute or for ever. What is allowed is less than
# that, and far more than a machine takes that has other work; the seconds themselves are promised by arithmetic, which is
# tested as such.
in_time() { check "$1: before anything that waits for a minute ($2 ms)" [ "$2" -lt 50000 ]; }
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
