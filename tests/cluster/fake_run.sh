#!/usr/bin/env bash
# Stands in for a run that ends in many ways: `fake_run.sh CONFIG [--set ...]` does in its k-th life what the k-th line of
# $FAKE_DIRECTORY/lives says: the steps that it makes, then its code or the signal that it dies of, or `wait` for SIGUSR1.
mkdir -p "$FAKE_DIRECTORY/run/checkpoints"
lives=$(cat "$FAKE_DIRECTORY/count" 2>/dev/null)
lives=$((${lives:-0} + 1))
echo "$lives" >"$FAKE_DIRECTORY/count"
printf '%s\n' "$@" >"$FAKE_DIRECTORY/arguments"
date +%s%N >>"$FAKE_DIRECTORY/begins"
read -r saved steps end <<<"$(sed -n "${lives}p" "$FAKE_DIRECTORY/lives")"
if [ "$saved" != - ]; then
  folder=$(printf '%s/run/checkpoints/step-%08d' "$FAKE_DIRECTORY" "$saved")
  mkdir -p "$folder" && : >"$folder/manifest.json"
fi
[ "$steps" = - ] || printf '{"kind":"step","step":%d,"loss":1}\n' "$steps" >>"$FAKE_DIRECTORY/run/metrics.jsonl"
case $end in
wait*)
  trap 'count=$((count + 1)); : >"$FAKE_DIRECTORY/signal.$count"' USR1
  count=0
  : >"$FAKE_DIRECTORY/ready"
  until [ "$count" -ge "${end#wait}" ]; do sleep 0.05; done
  exit $((count == 1 ? 75 : 138))
  ;;
orphan)
  sleep 300 &
  echo $! >"$FAKE_DIRECTORY/orphan"
  kill -KILL $$
  ;;
[A-Z]*) kill "-$end" $$ && sleep 5 ;;
*) exit "$end" ;;
esac
