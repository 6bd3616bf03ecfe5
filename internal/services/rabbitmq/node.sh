# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # set here and used there, or the other way round
# What rabbitmq.sh and rabbitmqctl.sh share: who and where the node is, and what a
# program of RabbitMQ must know to be it, or to reach it. Sourced after common.sh.

# The distribution port (rabbitmqctl's way in) and the port of the node's own epmd
# are the two after it. Not 4369: a system's epmd belongs to others, and may listen
# on every address.
set_port() {
  port=$1
  address=127.0.0.1:$port
  epmd_port=$((port + 2))
}
set_port "${SERVICES_RABBITMQ_PORT:-25673}"

# find_programs sets $bin, the folder of RabbitMQ's scripts, and $epmd. Debian's
# rabbitmqctl in the PATH is a wrapper that insists on the system's node.
find_programs() {
  bin=/usr/lib/rabbitmq/bin
  if [[ ! -x $bin/rabbitmq-server ]]; then
    bin=$(dirname "$(command -v rabbitmq-server)")
  fi
  epmd=$(command -v epmd) || epmd=$(dirname "$(readlink -f "$(command -v erl)")")/epmd
  [[ -x $bin/rabbitmq-server && -x $bin/rabbitmqctl && -x $epmd ]] && have erl
}

# set_environment HOME sets $in_environment, the words that make a command run as the
# node's user and in its environment, of which nothing is the caller's or the
# system's: both may have a RabbitMQ of their own. The cookie, the password of the
# distribution, is in HOME.
set_environment() {
  in_environment=("${as_server_user[@]}" env -i "PATH=$PATH" "HOME=$1" LC_ALL=C.UTF-8
    RABBITMQ_CONF_ENV_FILE=/dev/null
    RABBITMQ_NODENAME=outbox@localhost
    ERL_EPMD_ADDRESS=127.0.0.1
    "ERL_EPMD_PORT=$epmd_port"
    # The epmd that this would start listens on what it likes, and nobody has its pid.
    "RABBITMQ_CTL_ERL_ARGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}")
}

# find_node sets $home to the folder of the node on our port, whichever clone started
# it. Erlang says its home in its command line; -services_port is a word of ours there.
find_node() {
  local mark=" -services_port $port " args file
  while IFS= read -r args; do
    if [[ $args == *"$mark"* && $args == *' -home '* ]]; then
      home=${args#* -home }
      home=${home%% -*}
      return
    fi
  done < <(
    if [[ -d /proc/self ]]; then
      grep -lsF -e -services_port /proc/[0-9]*/cmdline | while IFS= read -r file; do
        { tr '\0' ' ' <"$file" && echo; } 2>/dev/null
      done
    else
      ps -ww -e -o args= | sed 's/$/ /'
    fi
  )
  return 1
}

# address_of URI prints its host and port, and nothing of its password.
address_of() {
  local rest=${1#*://} host port=5672
  if [[ $1 == amqps:* ]]; then
    port=5671
  fi
  rest=${rest%%[/?#]*}
  host=${rest##*@}
  if [[ $host =~ ^(.*):([0-9]+)$ ]]; then
    host=${BASH_REMATCH[1]}
    port=${BASH_REMATCH[2]}
  fi
  host=${host#[}
  host=${host%]}
  printf '%s:%s\n' "${host:-localhost}" "$port"
}
