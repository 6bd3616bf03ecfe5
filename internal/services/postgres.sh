#!/usr/bin/env bash
# Starts or stops the Postgres of the tests: postgres.sh start|stop. It listens on
# 127.0.0.1:$SERVICES_POSTGRES_PORT (54329), with the database outbox and the
# superuser outbox, password outbox. If POSTGRES_DSN is set, that server is asked
# for a sign of life instead, and none is started.
service=postgres
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=internal/services/postgres/psql.sh
source "$here/postgres/psql.sh"

port=${SERVICES_POSTGRES_PORT:-54329}
address=127.0.0.1:$port

install_postgres() {
  # Debian's package would also create and start a cluster that nobody asked for.
  local conf=/etc/postgresql-common/createcluster.conf
  if ((EUID == 0)) && have apt-get && [[ ! -e $conf ]]; then
    mkdir -p "${conf%/*}"
    echo 'create_main_cluster = false' >"$conf"
  fi
  apt_install postgresql || return 1
  choose_user
}

# answers: by role, password and database ours is told from any other server.
answers() {
  if [[ -z $psql ]]; then
    [[ $(greeting "$address") == 52????????0000000a ]] # SCRAM, with which our cluster is made
    return
  fi
  log_in "postgres://outbox:outbox@$address/outbox?sslmode=disable" >/dev/null
}

# check_users_server never prints the DSN, which holds a password.
check_users_server() {
  local said
  if ! find_psql; then
    say "POSTGRES_DSN is set; not checked, because there is no psql"
  elif said=$(log_in "$POSTGRES_DSN"); then
    say "POSTGRES_DSN is set, and that server answers"
  elif [[ $said == *'invalid URI query parameter'* || $said == *'invalid connection option'* ]]; then
    # Drivers have options of their own, such as binary_parameters=yes.
    say "POSTGRES_DSN is set; not checked, because psql does not know one of its options"
  else
    die "POSTGRES_DSN is set, but that server does not answer: $said"
  fi
}

# make_cluster: what exists under the name $data is complete, whenever we are killed.
make_cluster() {
  local new=$home/data.new log=$home/initdb.log
  rm -rf "$new"
  echo outbox >"$home/password"
  chmod 644 "$home/password"
  # Locale C: text sorts the same on every machine.
  if ! "${as_server_user[@]}" "$bin/initdb" -D "$new" -U outbox --pwfile="$home/password" \
    --auth=scram-sha-256 --encoding=UTF8 --locale=C </dev/null >"$log" 2>&1 ||
    ! "${as_server_user[@]}" "$bin/postgres" --single -D "$new" postgres \
      <<<'CREATE DATABASE outbox' >>"$log" 2>&1; then
    show_log "$log"
    die "cannot make a database cluster"
  fi
  echo "include = 'outbox.conf'" >>"$new/postgresql.conf"
  mv "$new" "$data"
}

# find_server DATA sets $pid to the postmaster of that folder, if it lives.
find_server() {
  pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null) && runs "$pid" "-D $1 "
}

start() {
  local advice="install Postgres with its server programs, or set POSTGRES_DSN to a server with wal_level=logical"
  local bin psql pid version home data

  if [[ -n ${POSTGRES_DSN:-} ]]; then
    check_users_server
    return
  fi
  stop_orphan "/postgres -p $port -D " QUIT
  find_psql || psql=
  if already_answers "$address" "stop it, or set SERVICES_POSTGRES_PORT or POSTGRES_DSN"; then
    say "answers at $address"
    return
  fi
  if ! find_binaries || ! find_psql; then
    if ! { install_postgres && find_binaries && find_psql; }; then
      die "$advice"
    fi
  fi

  version=$("$bin/postgres" --version | sed -E 's/[^0-9]*([0-9]+).*/\1/')
  home=$state/postgres
  data=$home/data-$version
  mkdir -p "$home"
  if ((EUID == 0)); then
    chown "$server_user" "$home"
  fi
  if find_server "$data"; then
    if runs "$pid" " -p $port -D $data "; then
      adopt "$pid" "$address" "$home/log"
      return
    fi
    die "process $pid has $data open, on another port; 'make services-stop' first"
  fi
  if [[ ! -d $data ]]; then
    say "making a database cluster (version $version)"
    make_cluster
  elif [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null; then
    # Postgres would take this stranger, who got the pid of a server that was
    # killed, for that server, and refuse to start.
    rm "$data/postmaster.pid"
  fi
  cp "$here/postgres/outbox.conf" "$data/outbox.conf"
  chmod 644 "$data/outbox.conf"

  fresh_log "$home/log"
  detach "$home/log" "${as_server_user[@]}" "$bin/postgres" -p "$port" -D "$data"
  wait_until_answering "$address" "$home/log" $! 'ready to accept'
}

stop() {
  local pid data
  for data in "$state"/postgres/data-*; do
    if find_server "$data"; then
      # INT does not wait for clients to leave; after QUIT the next start recovers.
      stop_process "$pid" "-D $data " INT QUIT KILL
      say "stopped process $pid"
    fi
  done
}

run_command "$@"
