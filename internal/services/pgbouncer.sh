#!/usr/bin/env bash
# Starts or stops the PgBouncer of the tests: pgbouncer.sh start|stop. It listens on
# 127.0.0.1:$SERVICES_PGBOUNCER_PORT (26432), pools transactions, and leads whoever
# connects to the Postgres of postgres.sh, or to that of POSTGRES_DSN, as that one's
# user: the database outbox to the same database, any other to the one of its name. If
# PGBOUNCER_DSN is set, that one is asked for a sign of life instead, and none is
# started. SERVICES_PGBOUNCER_POOL is how many server connections a database has, in place
# of those of settings.ini.
service=pgbouncer
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=internal/services/postgres/psql.sh
source "$here/postgres/psql.sh"

port=${SERVICES_PGBOUNCER_PORT:-26432}
address=127.0.0.1:$port
postgres_dsn=${POSTGRES_DSN:-postgres://outbox:outbox@127.0.0.1:${SERVICES_POSTGRES_PORT:-54329}/outbox?sslmode=disable}

# find_program sets $program. Debian's is in a folder that a user's PATH may lack.
find_program() {
  program=$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v pgbouncer)
}

# whose DSN prints which database answers there.
whose() {
  log_in "$1" "SELECT system_identifier, current_database() FROM pg_catalog.pg_control_system()"
}

# answers: it leads to our Postgres, not only to some, and pools transactions.
answers() {
  if [[ -z $psql ]]; then
    [[ $(greeting "$address") == 520000000800000000 ]] # it lets anybody in
    return
  fi
  [[ $(whose "postgres://outbox@$address/outbox?sslmode=disable") == "$behind" ]] &&
    [[ $(log_in "postgres://outbox@$address/pgbouncer?sslmode=disable" 'SHOW CONFIG') == *$'\npool_mode|transaction|'* ]]
}

# check_users_server never prints the DSN, which holds a password.
check_users_server() {
  local said
  if ! find_psql; then
    say "PGBOUNCER_DSN is set; not checked, because there is no psql"
  elif said=$(log_in "$PGBOUNCER_DSN"); then
    say "PGBOUNCER_DSN is set, and that server answers"
  else
    die "PGBOUNCER_DSN is set, but that server does not answer: $said"
  fi
}

decode() {
  local text=${1//\\/\\\\}
  printf '%b' "${text//%/\\x}"
}

# setting NAME VALUE: in the connection strings of pgbouncer.ini.
setting() { printf "%s='%s' " "$1" "${2//\'/\'\'}"; }

# take_apart URL sets $target, which leads to that server as pgbouncer.ini says it,
# $database, and $sslmode.
take_apart() {
  local user='([^:/@]+)' password='([^/@]*)' host='([^:/@?]+|\[[^]]+\])' sslmode_value='(disable|allow|prefer|require)'
  [[ $1 =~ ^postgres(ql)?://$user:$password@$host(:([0-9]+))?/([^?]+)(\?(.*))?$ ]] || return 1
  local parts=("${BASH_REMATCH[@]}")
  local host_name=${parts[4]#[}
  target=$(
    setting host "$(decode "${host_name%]}")"
    setting port "${parts[6]:-5432}"
    setting user "$(decode "${parts[2]}")"
    setting password "$(decode "${parts[3]}")"
  )
  database=$(decode "${parts[7]}")
  sslmode=prefer
  if [[ "&${parts[9]}&" == *'&sslmode='* ]]; then
    [[ "&${parts[9]}&" =~ \&sslmode=$sslmode_value\& ]] || return 1
    sslmode=${BASH_REMATCH[1]}
  fi
}

write_settings() {
  (umask 077 && cat >"$1") <<SETTINGS
[databases]
outbox = $target$(setting dbname "$database")
* = $target

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
server_tls_sslmode = $sslmode

$(<"$here/pgbouncer/settings.ini")
${SERVICES_PGBOUNCER_POOL:+default_pool_size = $SERVICES_PGBOUNCER_POOL}
SETTINGS
}

# find_server HOME sets $pid to the PgBouncer of that folder, if it lives.
find_server() {
  pid=$(cat "$1/pid" 2>/dev/null) && runs "$pid" " $1/pgbouncer-"
}

start() {
  local advice="install PgBouncer (Debian: pgbouncer), or set PGBOUNCER_DSN to the address of one"
  local program psql bin behind target database sslmode pid home settings

  if [[ -n ${PGBOUNCER_DSN:-} ]]; then
    check_users_server
    return
  fi
  find_psql || psql=
  if [[ -n $psql ]] && ! behind=$(whose "$postgres_dsn"); then
    die "the Postgres that it is to stand before does not answer; postgres.sh starts one"
  fi
  home=$state/pgbouncer
  stop_orphan "/pgbouncer-$port.ini " TERM
  if ! take_apart "$postgres_dsn"; then
    die "POSTGRES_DSN is no URL with user, password, host and database; set PGBOUNCER_DSN too"
  fi
  mkdir -p "$home"
  settings=$home/pgbouncer-$port.ini
  write_settings "$settings.new"
  if find_server "$home" && ! cmp -s "$settings.new" "$settings"; then
    stop_process "$pid" " $home/pgbouncer-" TERM KILL
    say "stopped process $pid, which has other settings"
  fi
  if already_answers "$address" "stop it, or set SERVICES_PGBOUNCER_PORT or PGBOUNCER_DSN"; then
    rm -f "$settings.new"
    say "answers at $address"
    return
  fi
  if find_server "$home"; then
    rm -f "$settings.new"
    adopt "$pid" "$address" "$home/log"
    return
  fi
  if ! find_program; then
    if ! { apt_install_idle pgbouncer && find_program; }; then
      die "$advice"
    fi
    choose_user
  fi

  rm -f "$home"/pgbouncer-*.ini
  mv "$settings.new" "$settings"
  fresh_log "$home/log"
  if ((EUID == 0)); then
    chown -R "$server_user" "$home"
  fi
  cd "$home" # for stop_orphan
  detach "$home/log" "${as_server_user[@]}" "$program" "$settings"
  echo $! >"$home/pid"
  wait_until_answering "$address" "$home/log" $! 'process up'
}

stop() {
  local pid home=$state/pgbouncer
  if find_server "$home"; then
    # INT waits for clients to leave.
    stop_process "$pid" " $home/pgbouncer-" TERM KILL
    say "stopped process $pid"
  fi
  # The settings hold a password.
  rm -f "$home/pid" "$home"/pgbouncer-*.ini*
}

run_command "$@"
