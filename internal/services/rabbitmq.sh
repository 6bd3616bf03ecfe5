#!/usr/bin/env bash
# Starts or stops the RabbitMQ of the tests: rabbitmq.sh start|stop. One node without
# plugins at 127.0.0.1:$SERVICES_RABBITMQ_PORT (25673), its distribution and its own
# epmd at the two ports after it, with the user outbox, password outbox, who may do
# everything in the vhost /. rabbitmqctl.sh speaks to it. If AMQP_URI is set, that
# server is asked for a sign of life instead, and none is started. If SERVICES_RABBITMQ_TLS
# is a folder with server.pem and server-key.pem, the third port after it speaks TLS; if
# clients.pem is there too, clients must show a certificate of these authorities.
service=rabbitmq
preferred_user=rabbitmq
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=internal/services/rabbitmq/node.sh
source "$here/rabbitmq/node.sh"

# exchange ADDRESS COUNT FRAMES sends the protocol header of AMQP 0-9-1 and FRAMES,
# which are written for printf, and prints in hex the first COUNT frames of the answer.
exchange() {
  # shellcheck disable=SC2016 # the inner shell expands it
  bounded 5 bash -c '
    exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || exit 1
    printf "AMQP\0\0\11\1$3" >&3
    for ((i = 0; i < $2; i++)); do
      # Type and channel in 3 bytes, length, payload, 0xCE.
      head=$(head -c 7 <&3 | od -An -tu1)
      read -r type _ _ a b c d <<<"$head"
      size=$((a << 24 | b << 16 | c << 8 | d))
      ((type == 1 && size < 65536)) || exit 1
      head -c "$((size + 1))" <&3 | od -An -v -tx1
    done' - "$1" "$2" "${3:-}" 2>/dev/null | tr -d '\n'
}

# answers: a log-in, by which ours is told from any other server. The frames need not
# wait for each other: Start-Ok with user and password, Tune-Ok, Open of the vhost /,
# Close. A frame is: 1, channel, length, class 10, method, arguments, 0xCE.
answers() {
  local said frames
  frames='\1\0\0\0\0\0\46\0\12\0\13\0\0\0\0\5PLAIN\0\0\0\16\0outbox\0outbox\5en_US\316'
  frames+='\1\0\0\0\0\0\14\0\12\0\37\0\1\0\0\20\0\0\0\316'
  frames+='\1\0\0\0\0\0\10\0\12\0\50\1/\0\0\316'
  frames+='\1\0\0\0\0\0\13\0\12\0\62\0\310\0\0\0\0\0\316'
  said=$(exchange "$address" 4 "$frames")
  [[ $said == *' 00 0a 00 29 00 ce'* ]] # Open-Ok, which a server sends that let us in
}

# check_users_server never prints the URI, which holds a password.
check_users_server() {
  local users_address
  users_address=$(address_of "$AMQP_URI")
  # With TLS the handshake is not ours to make.
  if [[ $AMQP_URI == amqps:* ]] && tcp_open "$users_address"; then
    say "AMQP_URI is set, and $users_address accepts connections"
  # The first frame, Start. A server of AMQP 1.0 only says so with a header.
  elif [[ $(exchange "$users_address" 1) == ' 00 0a 00 0a '* ]]; then
    say "AMQP_URI is set, and that server answers"
  else
    die "AMQP_URI is set, but no server of AMQP 0-9-1 answers at $users_address"
  fi
}

# tls_settings FOLDER prints the settings of the listener with TLS.
tls_settings() {
  printf '%s\n' "listeners.ssl.1 = 127.0.0.1:$((port + 3))" \
    "ssl_options.certfile = $1/server.pem" "ssl_options.keyfile = $1/server-key.pem"
  if [[ -e $1/clients.pem ]]; then
    printf '%s\n' "ssl_options.cacertfile = $1/clients.pem" \
      'ssl_options.verify = verify_peer' 'ssl_options.fail_if_no_peer_cert = true'
  fi
}

# find_server HOME sets $pid to the node of that folder, if it lives.
find_server() {
  pid=$(cat "$1/pid" 2>/dev/null) && runs "$pid" " -home $1 "
}

# port_of HOME prints the port that the node of that folder was started with.
port_of() { sed -n 's/^listeners.tcp.1 = 127.0.0.1://p' "$1/rabbitmq.conf"; }

epmd_answers() { bounded 5 "${in_environment[@]}" "$epmd" -port "$epmd_port" -names >/dev/null 2>&1; }

# start_epmd: Erlang would start one itself, but not say its pid.
start_epmd() {
  local deadline=$((SECONDS + 10)) pid
  if epmd_answers; then
    return
  fi
  detach "$home/epmd.log" "${in_environment[@]}" "$epmd" -address 127.0.0.1 -port "$epmd_port"
  pid=$!
  # Another clone's may answer instead, if it took the port a moment before.
  until epmd_answers; do
    if ((SECONDS >= deadline)); then
      show_log "$home/epmd.log"
      die "no epmd answers at 127.0.0.1:$epmd_port"
    fi
    sleep 0.1
  done
  echo "$pid" >"$home/epmd.pid"
}

# stop_epmd: it outlives its nodes. One that Erlang started after ours was killed is
# found by its port. It refuses to end while it has a node, as another clone's.
stop_epmd() {
  local deadline=$((SECONDS + 5)) pid mark="/epmd -address 127.0.0.1 -port $epmd_port "
  if find_programs; then
    # It may take a moment to see that our node, or a rabbitmqctl, has gone.
    while [[ $(bounded 5 "${in_environment[@]}" "$epmd" -port "$epmd_port" -kill 2>&1) == *'living nodes'* ]]; do
      if ((SECONDS >= deadline)) || tcp_open "$address"; then
        say "the epmd at 127.0.0.1:$epmd_port has other nodes, and is left to them"
        return
      fi
      sleep 0.1
    done
  fi
  if pid=$(cat "$home/epmd.pid" 2>/dev/null) && runs "$pid" "$mark"; then
    stop_process "$pid" "$mark" TERM KILL
  fi
  rm -f "$home/epmd.pid"
}

start() {
  local advice="install RabbitMQ (Debian: rabbitmq-server), or set AMQP_URI to the address of a server"
  local bin epmd pid home data in_environment settings old

  if [[ -n ${AMQP_URI:-} ]]; then
    check_users_server
    return
  fi
  home=$state/rabbitmq
  stop_orphan " -services_port $port " KILL
  if already_answers "$address" "stop it, or set SERVICES_RABBITMQ_PORT or AMQP_URI"; then
    if find_server "$home" && find_programs; then
      set_environment "$home"
      start_epmd # it may have been killed
    fi
    say "answers at $address"
    return
  fi
  if ! find_programs; then
    if ! { apt_install_idle rabbitmq-server && find_programs; }; then
      die "$advice"
    fi
    choose_user
  fi
  if find_server "$home"; then
    if [[ $(port_of "$home") == "$port" ]]; then
      adopt "$pid" "$address" "$home/log"
      return
    fi
    die "process $pid has $home open, on another port; 'make services-stop' first"
  fi

  # RabbitMQ's own folder bears its version, which may be unable to read another's data.
  data=$home/data-$(readlink -f "$bin/rabbitmq-server" | cksum | cut -d' ' -f1)
  for old in "$home"/data-*; do
    # A node that was killed in its first start would never get its user.
    if [[ -d $old && ($old != "$data" || ! -e $data/complete) ]]; then
      rm -rf "$old"
    fi
  done
  mkdir -p "$data"
  settings=$(<"$here/rabbitmq/rabbitmq.conf")
  printf '%s\n' "${settings//@PORT@/"$port"}" >"$home/rabbitmq.conf"
  if [[ -n ${SERVICES_RABBITMQ_TLS:-} ]]; then
    tls_settings "$SERVICES_RABBITMQ_TLS" >>"$home/rabbitmq.conf"
  fi
  # No settings and no plugins: without these files it takes the system's.
  echo '[].' >"$home/advanced.config"
  echo '[].' >"$home/enabled_plugins"
  if [[ ! -s $home/.erlang.cookie ]]; then
    (umask 077 && od -An -N20 -tx1 /dev/urandom | tr -d ' \n' >"$home/.erlang.cookie")
  fi
  chmod 400 "$home/.erlang.cookie" # else Erlang refuses it
  fresh_log "$home/log"
  if ((EUID == 0)); then
    chown -R "$server_user" "$home" # who may have been nobody before
  fi

  set_environment "$home"
  cd "$home" # for stop_orphan
  start_epmd
  # RUNNING_UNDER_SYSTEMD: no shell between us and the node, so that the pid is the node's.
  # Its log goes to its output, because why it cannot start is said only there.
  detach "$home/log" "${in_environment[@]}" \
    RUNNING_UNDER_SYSTEMD=true \
    RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf" \
    RABBITMQ_ADVANCED_CONFIG_FILE="$home/advanced.config" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$home/enabled_plugins" \
    RABBITMQ_MNESIA_BASE="$data" \
    RABBITMQ_SCHEMA_DIR="$data/schema" \
    RABBITMQ_GENERATED_CONFIG_DIR="$data/config" \
    RABBITMQ_LOG_BASE="$home" \
    RABBITMQ_LOGS=- \
    RABBITMQ_DIST_PORT=$((port + 1)) \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false -services_port $port" \
    "$bin/rabbitmq-server"
  echo $! >"$home/pid"
  wait_until_answering "$address" "$home/log" $! 'Server startup complete' \
    'in use by another node|already running on|eaddrinuse'
  if find_server "$home"; then # and not another clone's
    touch "$data/complete"
  fi
}

stop() {
  local pid bin epmd in_environment home=$state/rabbitmq
  if [[ ! -e $home/rabbitmq.conf ]]; then
    return
  fi
  set_port "$(port_of "$home")" # it was started with
  if find_server "$home"; then
    stop_process "$pid" " -home $home " TERM KILL
    say "stopped process $pid"
  fi
  rm -f "$home/pid"
  set_environment "$home"
  stop_epmd
}

run_command "$@"
