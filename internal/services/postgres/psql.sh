# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # set here and used there, or the other way round
# What postgres.sh and pgbouncer.sh share: Postgres' programs, and a log-in by which a
# server is known as ours. Sourced after common.sh.

# They speak of a server of the user's, and every program of Postgres reads them.
if [[ -z ${POSTGRES_DSN:-} ]]; then
  unset "${!PG@}"
fi

# find_binaries sets $bin, the folder of the newest installed server.
find_binaries() {
  local folder
  for folder in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5nr) \
    "$(pg_config --bindir 2>/dev/null)" "$(dirname "$(command -v postgres)")"; do
    if [[ -x $folder/postgres && -x $folder/initdb ]]; then
      bin=$folder
      return
    fi
  done
  return 1
}

# find_psql sets $psql, to nothing where there is none.
find_psql() {
  if find_binaries && [[ -x $bin/psql ]]; then
    psql=$bin/psql
  else
    psql=$(command -v psql)
  fi
}

# greeting ADDRESS prints in hex what a server says at once to the user outbox: R, length,
# and how it wants to know who that is. It is what can be asked without psql, which a
# machine may lack whose servers run in Docker.
greeting() {
  # Length 37, protocol 3.0, names and values.
  # shellcheck disable=SC2016 # the inner shell expands it
  bounded 5 bash -c '
    exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || exit 1
    printf "\0\0\0\45\0\3\0\0user\0outbox\0database\0outbox\0\0" >&3
    head -c 9 <&3 | od -An -v -tx1' - "$1" 2>/dev/null | tr -d ' \n'
}

# log_in DSN [STATEMENT]: a database has to answer, not only a port.
log_in() {
  PGCONNECT_TIMEOUT=5 bounded 10 "$psql" -X -w -q -t -A -d "$1" -c "${2:-SELECT 1}" 2>&1 </dev/null
}
