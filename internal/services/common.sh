# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # set here and used there, or the other way round
# What the scripts of all servers share. A server's script sets $service, sources
# this file, defines start, stop and answers, and ends with: run_command "$@".
#
# Environment, all optional:
#   SERVICES_DIR      where data, logs and pid files go (default: .services in the clone)
#   SERVICES_TIMEOUT  seconds to wait for a server to answer (default: 60)

set -euo pipefail

unset CDPATH # cd would search it, and print what it found
root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
here=$root/internal/services
state_link=${SERVICES_DIR:-$root/.services}
if [[ $state_link != /* ]]; then
  state_link=$PWD/$state_link
fi
timeout_seconds=${SERVICES_TIMEOUT:-60}

# A server's user may be unable to enter the folder that make was called in.
cd /

export LC_ALL=C # the messages that are looked for are English

say() { printf '%s: %s\n' "$service" "$*"; }

die() {
  printf '%s: error: %s\n' "$service" "$*" >&2
  exit 1
}

# show_log FILE: its end, for the reader of a failure.
show_log() {
  printf '%s: the end of %s:\n' "$service" "$1" >&2
  tail -n 20 "$1" >&2 || true
}

have() { command -v "$1" >/dev/null 2>&1; }

# bounded SECONDS COMMAND...: no step may hang, not even where coreutils' timeout
# is missing (macOS).
bounded() {
  local seconds=$1
  shift
  if have timeout; then
    timeout "$seconds" "$@"
  else
    perl -e 'alarm shift; exec @ARGV or exit 127' "$seconds" "$@"
  fi
}

# choose_user sets $server_user, as which a server runs that refuses root, and
# $as_server_user, the words that make a command run as it. It is $preferred_user
# (default: postgres) or nobody. Called again after an installation, which may bring a
# user along.
choose_user() {
  if ((EUID != 0)); then
    server_user=$(id -un)
    as_server_user=(env)
    return
  fi
  server_user=nobody
  if id "${preferred_user:-postgres}" >/dev/null 2>&1; then
    server_user=${preferred_user:-postgres}
  fi
  if have setpriv; then
    as_server_user=(setpriv "--reuid=$server_user" "--regid=$(id -g "$server_user")" --init-groups env HOME=/)
  else
    as_server_user=(runuser -u "$server_user" -- env HOME=/)
  fi
}

# plain_path PATH: all servers can take it. Kafka splits a list of folders at commas,
# Java a class path at colons and, in this locale, it knows ASCII alone; RabbitMQ's
# scripts and Erlang's command line are not made for spaces and quotes.
plain_path() { [[ $1 =~ ^[A-Za-z0-9/._+-]+$ ]]; }

# open_state sets $state, the folder that everything is written below. Where the
# server's user cannot enter the clone (one below /root), or a server could not take
# its path, .services is a link to a folder below the temp folder.
open_state() {
  local parent=${state_link%/*} base outside
  if [[ ! -d $state_link ]]; then
    if [[ -L $state_link ]]; then
      rm "$state_link" # the temp folder was emptied
    fi
    mkdir -p "$parent"
    if plain_path "$state_link" && "${as_server_user[@]}" test -x "$parent"; then
      mkdir -p "$state_link"
    else
      base=${TMPDIR:-/tmp}
      if ! plain_path "$base" || ! "${as_server_user[@]}" test -x "$base"; then
        base=/tmp
      fi
      outside=$base/watermill-outbox-services-$EUID-$(cksum <<<"$state_link" | cut -d' ' -f1)
      mkdir -p "$outside"
      # The name can be guessed, and the temp folder is everyone's.
      if [[ -L $outside || ! -O $outside ]]; then
        die "$outside is not ours; remove it, or set TMPDIR"
      fi
      # -n: not into the folder, where another process made the link a moment before.
      ln -sn "$outside" "$state_link" 2>/dev/null || [[ -d $state_link ]]
    fi
  fi
  state=$(cd -P "$state_link" && pwd -P)
  if ! plain_path "$state"; then
    die "the servers cannot take the path $state; remove it"
  fi
  chmod 755 "$state" # whatever the umask: the server's user must enter
  if ! "${as_server_user[@]}" test -x "$state"; then
    die "the user $server_user cannot enter $state; remove it"
  fi
}

# lock makes a second 'make services' of this clone wait for the first. Clones do
# not lock each other out: the one that loses the port waits for the other's
# server and uses it.
lock() {
  if have flock; then
    exec 9>"$state/$service.lock"
    flock -w 900 9 || die "another start or stop does not end ($state/$service.lock)"
  fi
}

# detach LOG COMMAND...: starts a server that outlives make, its terminal and its
# pipes ('make services | cat' must return), and leaves its pid in $!.
detach() {
  local log=$1 session=nohup
  shift
  if have setsid; then
    session=setsid
  fi
  # 3 to 9: the lock, and what make hands down to its jobs.
  "$session" "$@" </dev/null >"$log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
}

# fresh_log LOG: keeps one older log.
fresh_log() {
  if [[ -e $1 ]]; then
    mv "$1" "$1.previous"
  fi
}

# runs PID TEXT: PID lives and TEXT is in its command line. A pid file may outlive
# a reboot and then name a stranger.
runs() {
  local args
  [[ $1 =~ ^[0-9]+$ ]] || return 1
  if [[ -d /proc/self ]]; then
    args=$(tr '\0' ' ' <"/proc/$1/cmdline") || return 1
  else
    args="$(ps -ww -o args= -p "$1") " || return 1
  fi 2>/dev/null
  [[ $args == *"$2"* ]]
}

# stop_process PID TEXT SIGNAL...: each signal in turn, with 20 seconds to obey.
stop_process() {
  local pid=$1 text=$2 signal deadline
  shift 2
  for signal in "$@"; do
    kill -s "$signal" "$pid" 2>/dev/null || true
    deadline=$((SECONDS + 20))
    while ((SECONDS < deadline)); do
      if ! runs "$pid" "$text"; then
        return 0
      fi
      sleep 0.1
    done
  done
  die "process $pid does not stop"
}

# stop_orphan TEXT SIGNAL: a server whose clone was deleted may still answer at our
# address and then fail at the first thing that a test asks of it. Linux shows it
# by its working folder.
stop_orphan() {
  local process pid
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if [[ $(readlink "$process/cwd" 2>/dev/null) == *' (deleted)' ]] && runs "$pid" "$1"; then
      say "stopping process $pid, whose folder was deleted"
      stop_process "$pid" "$1" "$2" KILL
    fi
  done
}

tcp_open() {
  # shellcheck disable=SC2016 # the inner shell expands it
  bounded 5 bash -c 'exec 3<>"/dev/tcp/${1%:*}/${1##*:}"' - "$1" 2>/dev/null
}

# already_answers ADDRESS: yes if our server answers there, whoever started it; no
# if nobody listens. A server that is still starting is given time.
already_answers() {
  local deadline=$((SECONDS + timeout_seconds))
  until answers; do
    if ! tcp_open "$1"; then
      return 1
    fi
    if ((SECONDS >= deadline)); then
      die "$1 is taken, and not by our server; $2"
    fi
    sleep 0.5
  done
}

# wait_until_answering ADDRESS LOG PID READY [TAKEN]: READY is what the log says when
# that server takes requests. Another clone's may answer instead, if it took the ports
# a moment before; then ours ends by itself and says TAKEN (a regular expression),
# maybe before the other is ready.
wait_until_answering() {
  local deadline=$((SECONDS + timeout_seconds)) taken=${5:-Address already in use}
  until answers; do
    if ((SECONDS >= deadline)) || { ! kill -0 "$3" 2>/dev/null && ! grep -qE "$taken" "$2"; }; then
      show_log "$2"
      die "no answer at $1"
    fi
    sleep 0.2
  done
  until grep -q "$4" "$2" 2>/dev/null; do
    if ! kill -0 "$3" 2>/dev/null; then
      say "answers at $1, started by another clone"
      return
    fi
    if ((SECONDS >= deadline)); then
      show_log "$2"
      die "process $3 neither starts nor ends"
    fi
    sleep 0.2
  done
  say "started at $1; log: $2"
}

# adopt PID ADDRESS LOG: waits for a server of ours that a start has left behind which was
# interrupted, and that is still starting.
adopt() {
  local deadline=$((SECONDS + timeout_seconds))
  until answers; do
    if ((SECONDS >= deadline)) || ! kill -0 "$1" 2>/dev/null; then
      show_log "$3"
      die "no answer at $2 from process $1, which an earlier start has left; 'make services-stop' first"
    fi
    sleep 0.2
  done
  say "answers at $2"
}

# apt_install PACKAGE...: where that is possible: as root, on Debian and its kin.
apt_install() {
  local log=$state/apt.log deadline=$((SECONDS + 300))
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold)
  if ((EUID != 0)) || ! have apt-get; then
    return 1
  fi
  say "installing from the distribution's packages: $*"
  # Lock::Timeout does not speak of the lock that update takes.
  until "${apt[@]}" update </dev/null >"$log" 2>&1 9>&-; do
    if ((SECONDS >= deadline)) || ! grep -q 'Could not get lock' "$log"; then
      show_log "$log"
      return 1
    fi
    sleep 1
  done
  # 9: a service that a package starts must not keep our lock.
  if ! "${apt[@]}" install --no-install-recommends "$@" </dev/null >>"$log" 2>&1 9>&-; then
    show_log "$log"
    return 1
  fi
}

# apt_install_idle PACKAGE: without the server that Debian's package starts, now and at
# each boot, on an address of its own choice. The service has the package's name.
apt_install_idle() (
  policy=/usr/sbin/policy-rc.d
  if ((EUID == 0)) && have apt-get; then
    if (set -o noclobber && : >"$policy") 2>/dev/null; then
      trap 'rm -f "$policy"' EXIT
      # If we are killed, it forbids nothing any more.
      printf '#!/bin/sh\n# of %s\nkill -0 %s 2>/dev/null || exit 0\nexit 101\n' "$here/$service.sh" $$ >"$policy"
      chmod 755 "$policy"
    fi
  fi
  apt_install "$1" || exit
  update-rc.d "$1" disable >/dev/null 2>&1 || true
  # Someone else's policy may allow the start.
  bounded 60 invoke-rc.d "$1" stop </dev/null >/dev/null 2>&1 9>&- || true
)

run_command() {
  case ${1:-} in
  start | stop)
    choose_user
    open_state
    lock
    "$1"
    ;;
  *) die "usage: $0 start|stop" ;;
  esac
}
