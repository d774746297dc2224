#!/usr/bin/env bash
# A run's folder as killed runs, other runs and the file systems of a cluster leave it.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
common=(base.json --set batch.micro=1 --set checkpoint.interval_steps=5)

# What killed runs leave, and what belongs to nobody.
train "${common[@]}" --set run.exit_at_step=10
cp -r run whole
mkdir -p run/checkpoints/step-00000015.tmp-1a-2b-0 run/checkpoints/.trash-step-00000005-1-2-3 run/checkpoints/notes
cp run/checkpoints/step-00000010/rank-00000.h5 run/checkpoints/step-00000015.tmp-1a-2b-0
cp -r run/checkpoints/step-00000005/. run/checkpoints/.trash-step-00000005-1-2-3
mkdir run/checkpoints/step-00000020 # of a name that counts, with nothing in it
: >run/checkpoints/latest
ln -s absent run/checkpoints/newest
printf '{"host":"%s","pid":%d,"start_ticks":1}\n' "$(hostname)" $$ >run/lock # this pid, another process
: >"run/lock.$(hostname).1.tmp"
train "${common[@]}"
ends_with "leftovers" 0
says "leftovers: it goes on at the newest that is whole" '^resuming from step 10 '
says_once "leftovers: an empty folder is told" 'step-00000020 is not used'
check "leftovers: no torn save, no trash" [ -z "$(find run/checkpoints -name '*.tmp-*' -o -name '.trash-*')" ]
check "leftovers: what belongs to others stays" [ -d run/checkpoints/notes ]
train "${common[@]}" --set run.directory=again
same_run "leftovers" run 20 again

# A lock of another host, long ago too, of this host's dead; another file of that name.
lock_of() { # WHAT CODE CONTENT [AGE]
  rm -rf run && mkdir run
  printf '%s\n' "$3" >run/lock
  [ -z "${4-}" ] || touch -d "$4" run/lock
  train "${common[@]}" --set run.exit_at_step=1
  ends_with "a lock $1" "$2"
  case $2 in
  0) check "a lock $1: it goes with the run" [ ! -e run/lock ] ;;
  2) says "a lock $1: it is named" 'run/lock is there and no run made it' ;;
  3) says "a lock $1: host and pid are named" 'elsewhere.*77' ;;
  esac
  [ "$2" = 0 ] || check "a lock $1: it stays" same "$(cat run/lock)" "$3"
}
lock_of "of another host, fresh" 3 '{"host":"elsewhere","pid":77,"job":"5","start_ticks":1}'
lock_of "of another host, untouched for an hour" 0 '{"host":"elsewhere","pid":77,"start_ticks":1}' '1 hour ago'
says "it says that it takes over" 'taken over from host elsewhere, pid 77'
lock_of "of a dead process" 0 "{\"host\":\"$(hostname)\",\"pid\":2147483000,\"start_ticks\":1}"
lock_of "that is somebody's file" 2 'nonsense' '1 hour ago'

# Several runs at once in one folder: one trains, the others end with 3.
for try in 1 2 3; do
  rm -rf run
  jobs=()
  for one in a b c; do
    "$binary" "${common[@]}" --set run.steps=40 >"out.$one" 2>"log.$one" &
    jobs+=($!)
    background+=($!)
  done
  codes=()
  for one in "${jobs[@]}"; do wait "$one"; codes+=($?); done
  # One that comes when the first is done finds a finished run.
  check "three at once, try $try: codes ${codes[*]}" contains " ${codes[*]} " " 0 "
  check "three at once, try $try: 0 or 3" [ -z "$(printf '%s\n' "${codes[@]}" | grep -v -x -e 0 -e 3)" ]
  check_metrics run 40
done

# What a cluster's file systems do to single ranks, by mount namespaces.
unshare --mount true 2>/dev/null || {
  echo "skipped the rest: no mount namespaces here" >&2
  finish
  exit
}
cat >as_rank <<E2
#!/usr/bin/env bash
if [ "\$OMPI_COMM_WORLD_RANK" = 1 ]; then
  exec unshare --mount --propagation private bash -c "\$MOUNT && exec \"\\\$@\"" _ "$binary" "\$@"
fi
exec "$binary" "\$@"
E2
chmod +x as_rank
export TRIREME_TRAIN=$scratch/as_rank MOUNT
odd_rank() { # WHAT CODE PATTERN
  rm -rf run
  mkdir -p run elsewhere
  ranks 2 "${common[@]}" --set run.exit_at_step=2
  ends_with "$1" "$2"
  [ "$2" = 0 ] && return
  says "$1: folder and host are named" "error: .*run: .*host $(hostname).*$3"
  check "$1: nothing is trained" [ ! -e run/checkpoints ]
  check "$1: nothing stays behind" [ -z "$(find run -name '.trireme-seen-*')" ]
}
MOUNT=true
odd_rank "the same folder everywhere" 0
MOUNT='mount --bind elsewhere run'
odd_rank "another folder on one rank" 3 'not the folder that rank 0'
MOUNT='mount --bind run run && mount -o remount,bind,ro run'
odd_rank "a folder that one rank cannot write" 74 'cannot write'
rm -rf run
mkdir -p run/checkpoints
MOUNT='mount --bind elsewhere run/checkpoints'
ranks 2 "${common[@]}" --set run.exit_at_step=2
ends_with "another checkpoint folder on one rank" 3
export TRIREME_TRAIN=$binary
rm -rf run && mkdir run
unshare --mount --propagation private bash -c 'mount --bind run run && mount -o remount,bind,ro run && exec "$@"' _ \
  "$binary" "${common[@]}" >out 2>log
code=$?
ends_with "a read-only folder" 74
says "a read-only folder is named" 'run'
finish
