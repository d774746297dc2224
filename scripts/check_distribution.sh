#!/usr/bin/env bash
# Does what a newcomer to a Debian or Ubuntu does, in a fresh root of it: clones the committed state of this tree, and runs
# one of the README's commands there, or the lines of the Dockerfile. Needs root and debootstrap.
#
# usage: scripts/check_distribution.sh [OPTIONS] quickstart [OPTION of scripts/quickstart.sh]...
#        scripts/check_distribution.sh [OPTIONS] test [OPTION of scripts/test.sh]...
#        scripts/check_distribution.sh [OPTIONS] container
#        scripts/check_distribution.sh [OPTIONS] run COMMAND LINE       (in the clone)
#   --suite NAME      trixie (the default), bookworm, noble, jammy, or another that debootstrap knows
#   --mirror URL      where packages come from (for Debian what apt here is configured with, else debootstrap's own choice)
#   --keyring FILE    by which they are checked; Ubuntu's is in the package ubuntu-keyring of Debian 13 and of Ubuntu
#   --directory DIR   of the roots and of the downloaded packages, which later runs use again (build/distributions)
#   --again           in the root that the last run left, with what this tree has now
#   --ccache          compiles what an earlier run with --ccache compiled from its cache: quicker, but not what a newcomer waits
#
# `container` makes the images' roots of the Dockerfile's stages with the same RUN lines, as there need not be a container
# engine here, tells the size of the last one and trains in it. How long everything took is said at the end.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
say() { echo "check_distribution: $*" >&2; }
wrong() { say "$* (--help says more)" && exit 2; }
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

suite=trixie mirror='' keyring='' directory=$tree/build/distributions again='' ccache=''
while [[ ${1-} == --* ]]; do
  case $1 in
  --again) again=yes && shift && continue ;;
  --ccache) ccache=yes && shift && continue ;;
  --suite | --mirror | --keyring | --directory) [ $# -gt 1 ] || wrong "$1 needs a value" ;;
  *) wrong "$1 is not known" ;;
  esac
  case $1 in --suite) suite=$2 ;; --mirror) mirror=$2 ;; --keyring) keyring=$2 ;; --directory) directory=$2 ;; esac
  shift 2
done
what=${1-}
case $what in
quickstart | test) shift ;;
container) shift && [ $# = 0 ] || wrong "container takes no argument" ;;
run) shift && [ $# -gt 0 ] || wrong "run takes a command line" ;;
*) wrong "one of quickstart, test, container, run" ;;
esac
[ "$(id -u)" = 0 ] || { say "only root can make a root" && exit 3; }
command -v debootstrap >/dev/null || { say "debootstrap is missing: apt-get install debootstrap" && exit 3; }
mkdir -p "$directory/$suite/packages"
directory=$(cd "$directory" && pwd)
here=$directory/$suite
# The roots below must not be reached through anybody's mounts, nor leave processes or mounts behind.
if [ -z "${TRIREME_IN_NAMESPACE-}" ]; then
  exec env TRIREME_IN_NAMESPACE=yes unshare --mount --pid --fork --kill-child --uts --ipc --mount-proc "$0" --suite "$suite" \
    ${mirror:+--mirror "$mirror"} ${keyring:+--keyring "$keyring"} --directory "$directory" ${again:+--again} \
    ${ccache:+--ccache} "$what" "$@"
fi
unset TRIREME_IN_NAMESPACE
exec 9>"$here/lock"
flock -n 9 || { say "another run is at work in $here" && exit 3; }

times=''
timed() { # WHAT COMMAND...
  local begin code=0
  begin=$(date +%s)
  "${@:2}" || code=$?
  times+="$1 $(($(date +%s) - begin)) s; "
  return $code
}

# The first source of this machine's apt that is a Debian.
mirror_of_apt() { apt-get indextargets --format '$(ORIGIN) $(SITE)' 2>/dev/null | awk '$1 == "Debian" { print $2; exit }'; }
is_ubuntu() { case $suite in jammy | noble | oracular | plucky | questing) return 0 ;; *) return 1 ;; esac; }
make_base() {
  local scripts=/usr/share/debootstrap/scripts options=(--variant=minbase "--cache-dir=$here/packages") script=''
  if is_ubuntu; then
    options+=(--components=main,universe)
    script=gutsy # what all newer ones are links to
    keyring=${keyring:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}
  else
    script=sid
    mirror=${mirror:-$(mirror_of_apt)}
  fi
  [ -z "$keyring" ] || options+=("--keyring=$keyring")
  [ -z "$keyring" ] || [ -e "$keyring" ] || { say "$keyring is missing (--keyring)" && exit 3; }
  if [ -e "$scripts/$suite" ]; then script=$suite; fi
  rm -rf "${here:?}/base" "$here/base.tmp"
  say "making a root of $suite"
  # An empty mirror is debootstrap's own choice, which only its script of that suite's name knows.
  debootstrap "${options[@]}" "$suite" "$here/base.tmp" "$mirror" "$scripts/$script" >"$here/debootstrap.log" 2>&1 ||
    { tail -n 5 "$here/debootstrap.log" >&2 && say "debootstrap failed ($here/debootstrap.log)" && exit 3; }
  mv "$here/base.tmp" "$here/base"
}

# enter ROOT COMMAND LINE, with what a running system has: /proc, /dev, /sys, names of hosts; apt's downloads are kept.
enter() {
  local root=$1
  if ! mountpoint -q "$root/proc"; then
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    mount --rbind /sys "$root/sys"
    mount --make-rslave "$root/sys"
    mount --bind "$here/packages" "$root/var/cache/apt/archives"
    # The pid namespace has processes of its own; shared memory, too, should.
    mountpoint -q "$root/dev/shm" && mount -t tmpfs tmpfs "$root/dev/shm"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    if [ -d "$root/ccache" ]; then mount --bind "$here/ccache" "$root/ccache"; fi
  fi
  local cached=()
  if [ -d "$root/ccache" ]; then cached=(CCACHE_DIR=/ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  chroot "$root" env -i HOME=/root TERM=dumb LANG=C.UTF-8 "${cached[@]}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -euo pipefail -c "$2"
}
fresh_root() { # NAME, in which something is going to be built
  rm -rf "${here:?}/$1"
  cp -a "$here/base" "$here/$1"
  [ "$ccache" ] || return 0
  mkdir -p "$here/ccache" "$here/$1/ccache"
  enter "$here/$1" "apt-get -qq update && apt-get -qq install --no-install-recommends ccache" >/dev/null 2>&1
}
# The Dockerfile, a stage in a root of its own.
stage=0 name='' workdir=/ environment=''
in_stage() { enter "$here/$name" "mkdir -p $workdir; cd $workdir; $environment$1"; }
copy() { # [--from=STAGE] SOURCE DESTINATION
  local to=${*: -1}
  [[ $to == /* ]] || to=$workdir/$to
  mkdir -p "$here/$name$to"
  case $1 in
  --from=*) cp -a "$here/stage-${1#--from=}$2/." "$here/$name$to" ;;
  .) git -C "$tree" archive HEAD | tar -x -C "$here/$name$to" ;;
  *) say "Dockerfile: COPY $* is not understood" && return 2 ;;
  esac
}
instruction() { # WORD REST
  case $1 in
  FROM)
    [[ $2 == "debian:$suite-slim"* ]] || { say "Dockerfile: FROM $2 is not this suite, $suite" && return 2; }
    stage=$((stage + 1)) name=stage-$((stage - 1)) workdir=/ environment=''
    if [[ $2 == *" AS "* ]]; then
      name=stage-${2##* AS }
      fresh_root "$name"
    else
      ccache='' fresh_root "$name"
    fi
    ;;
  WORKDIR) workdir=$2 ;;
  ENV) environment+="export $2; " ;;
  COPY) read -ra words <<<"$2" && copy "${words[@]}" ;;
  RUN) timed "RUN ${2:0:40}" in_stage "$2" ;;
  CMD | ENTRYPOINT | LABEL | USER | EXPOSE) ;;
  *) say "Dockerfile: $1 is not understood" && return 2 ;;
  esac
}
container() {
  local line whole=''
  while IFS= read -r line; do
    [[ ! $line =~ ^[[:space:]]*(#.*)?$ ]] || continue
    whole+=${line%\\}
    if [[ $line == *\\ ]]; then continue; fi
    say "${whole:0:120}"
    instruction "${whole%% *}" "${whole#* }" </dev/null || return
    whole=''
  done <"$tree/Dockerfile"
  timed "training in the last stage" in_stage "train --version && run.sh -n 2 /usr/local/share/trireme/configs/tiny_llama.json \
    --set run.steps=20" || return
  rm -rf "${here:?}/$name$workdir"/*
  say "the last stage takes $(du -smx --exclude=proc --exclude=sys --exclude=dev --exclude=archives "$here/$name" | cut -f 1) MB," \
    "$(du -smx "$here/base" | cut -f 1) of them of $suite"
}

[ -e "$here/base/bin/bash" ] || timed "a root of $suite" make_base
code=0
case $what in
container) container || code=$? ;;
*)
  clone=$here/machine/trireme
  if [ "$again" ] && [ -e "$clone" ]; then
    git -C "$clone" fetch --quiet "file://$tree" HEAD
    git -C "$clone" reset --quiet --hard FETCH_HEAD
  else
    fresh_root machine
    git clone --quiet --depth 1 "file://$tree" "$clone"
  fi
  if [ "$what" = run ]; then line=$*; else line="scripts/$what.sh${*:+ $(printf '%q ' "$@")}"; fi
  timed "$line" enter "$here/machine" "cd /trireme && $line" || code=$?
  ;;
esac
say "$suite: exit $code; ${times%; } ($here)"
exit "$code"
