#!/usr/bin/env bash
# What scripts/bundle.sh packs runs in an empty root: no libraries, no Open MPI, only a shell. Needs root or user namespaces.
#   bundle_test.sh TRAIN
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
cd "$scratch" || exit 1
echo "a text" >note
"$root/scripts/bundle.sh" --train "$binary" --output trireme.tar.xz --add "$(command -v xz)" --add note 2>log
check "it packs" [ $? = 0 ]
check "under 60 MB" [ "$(stat -c %s trireme.tar.xz)" -lt 60000000 ]

# A root with a shell (and what it needs), /proc, /dev and the bundle in a folder of another name.
mkdir -p new/{bin,proc,dev,sys,tmp,elsewhere}
cp "$(readlink -f /bin/dash || readlink -f /bin/sh)" new/bin/sh
for library in $(ldd new/bin/sh | grep -o '/[^ ]*'); do
  mkdir -p "new/$(dirname "$library")"
  cp -L "$library" "new/$library"
done
tar -C new/elsewhere -xf trireme.tar.xz
cat >new/tmp/tiny.json <<'JSON'
{"run": {"directory": "/tmp/run", "steps": 3, "threads_per_rank": 1}, "data": {"train": "synthetic", "sequence_length": 16},
 "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
           "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16},
 "batch": {"global": 4, "micro": 1}, "optimizer": {"lr": 1e-3}}
JSON
in_root() { # in_root COMMAND LINE: in the new root, with an environment of its own
  unshare --mount --map-root-user --fork --pid sh -c '
    mount --rbind /dev new/dev && mount --rbind /sys new/sys && mount -t proc proc new/proc && exec env -i HOME=/tmp "$(command -v chroot)" new /bin/sh -c "$1"' sh "$1" >out 2>log
}
if ! unshare --mount --map-root-user --fork --pid true 2>/dev/null; then
  echo "no namespaces here: the bundle was packed, not run" >&2
  finish
  exit 77
fi
in_root '/elsewhere/trireme/train --version'
check "the version" [ $? = 0 ]
in_root '/elsewhere/trireme/train /tmp/tiny.json'
check "one rank trains" [ $? = 0 ]
[ "$failures" = 0 ] || cat log
check "and saves" [ -e new/tmp/run/checkpoints/step-00000003/manifest.json ]
in_root '/elsewhere/trireme/xz --version'
check "a program that was added finds its libraries" [ $? = 0 ]
check "a file that was added stands there" [ "$(cat new/elsewhere/trireme/note)" = "a text" ]
rm -rf new/tmp/run
in_root '/elsewhere/trireme/mpirun --allow-run-as-root --oversubscribe -n 2 /elsewhere/trireme/train /tmp/tiny.json'
check "two ranks train" [ $? = 0 ]
check "and save two shards" [ "$(ls new/tmp/run/checkpoints/step-00000003 | grep -c '^rank-')" = 2 ]
[ "$failures" = 0 ] || { cat out log; }
finish
