# Sourced: a scratch folder, `check WHAT CONDITION...`, `wait_for FILE`, `finish`.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
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
