#!/usr/bin/env bash
# Starts or stops the Apache Kafka of the tests: kafka.sh start|stop. One node,
# broker at 127.0.0.1:$SERVICES_KAFKA_PORT (29092), controller at the port after
# it, then the listeners with TLS and SASL. If KAFKA_BROKERS is set, those are asked
# for a sign of life instead, and none is started. If SERVICES_KAFKA_PROXIES lists
# ports, one listener for each follows, that is advertised at its port: for proxies of a
# test, which lead back to them.
service=kafka
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

port=${SERVICES_KAFKA_PORT:-29092}
address=127.0.0.1:$port
controller_port=$((port + 1))

# The names of the listeners stand in server.properties, too.
secure_listeners=TLS://127.0.0.1:$((port + 2)),MTLS://127.0.0.1:$((port + 3)),SASL://127.0.0.1:$((port + 4)),SASLTLS://127.0.0.1:$((port + 5))

# make_proxied_listeners sets what is added to the settings of the listeners, for each
# port that a proxy has.
make_proxied_listeners() {
  local proxy name listens=$((port + 6))
  proxied_listeners='' proxied_advertised='' proxied_protocols=''
  for proxy in ${SERVICES_KAFKA_PROXIES:-}; do
    name=PROXIED$listens
    proxied_listeners+=,$name://127.0.0.1:$listens
    proxied_advertised+=,$name://127.0.0.1:$proxy
    proxied_protocols+=,$name:PLAINTEXT
    listens=$((listens + 1))
  done
}

# 16 bytes in base64, as Kafka wants it: "watermill-outbox". By it a running server
# is known as ours.
cluster_id=d2F0ZXJtaWxsLW91dGJveA

# ask_metadata HOST:PORT prints the broker's answer to a Metadata request of version
# 2 that names no topic. An open port says little: Kafka listens before it is ready.
ask_metadata() {
  # Length 14, then: api key 3, version 2, correlation id 1, no client id, 0 topics.
  # shellcheck disable=SC2016 # the inner shell expands it
  bounded 5 bash -c '
    exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || exit 1
    printf "\0\0\0\16\0\3\0\2\0\0\0\1\377\377\0\0\0\0" >&3
    # The answer: length, correlation id, number of brokers, brokers, cluster id.
    size=$(head -c 4 <&3 | od -An -tu1 | (read -r a b c d && echo $((a << 24 | b << 16 | c << 8 | d))))
    ((size < 65536)) && head -c "$size" <&3' - "$1" 2>/dev/null
}

# answers: our cluster, with its broker registered.
answers() {
  [[ $(ask_metadata "$address" | tr -c '[:print:]' ' ') == *127.0.0.1*"$cluster_id"* ]]
}

# secure_listeners_answer: not so where a Kafka was started by an older kafka.sh. One
# that is still starting opens them a moment after the plain one.
secure_listeners_answer() {
  local listener deadline=$((SECONDS + 10))
  for listener in ${secure_listeners//,/ }; do
    until tcp_open "${listener#*://}"; do
      ((SECONDS < deadline)) || return 1
      sleep 0.2
    done
  done
}

check_users_server() {
  local broker
  for broker in ${KAFKA_BROKERS//,/ }; do
    if tcp_open "$broker"; then
      say "KAFKA_BROKERS is set, and $broker answers"
      return
    fi
  done
  die "KAFKA_BROKERS is set, but nothing answers at $KAFKA_BROKERS"
}

# find_java sets $java to a runtime that Kafka 4 accepts.
find_java() {
  local version
  for java in "${JAVA_HOME:-/none}/bin/java" "$(command -v java)"; do
    if version=$("$java" -version 2>&1) && [[ $version =~ version\ \"([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)); then
      return
    fi
  done
  return 1
}

fetch_jars() {
  local new=$home/jars.new log=$home/mvn.log
  say "fetching Kafka's jars with mvn"
  rm -rf "$new"
  # The pom is copied because Maven may write beside it. -U: a failure of the
  # network must not be remembered for a day.
  mkdir -p "$home/pom"
  cp "$here/kafka/pom.xml" "$home/pom/"
  if ! bounded 900 mvn -B -ntp -U -f "$home/pom/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$new" </dev/null >"$log" 2>&1; then
    show_log "$log"
    die "cannot fetch Kafka's jars"
  fi
  # Those of another version, and its data, are of no use any more.
  rm -rf "$home"/jars-* "$home"/data-*
  mv "$new" "$jars"
}

# make_certificates: of an authority of our own, for this start of the server. They
# outlast any run of it. A name below .test (RFC 6761) is nobody's.
make_certificates() {
  local log=$home/openssl.log
  rm -rf "$tls"
  mkdir -p "$tls"
  if ! { make_authority && make_certificate server && make_certificate client; } </dev/null >"$log" 2>&1; then
    show_log "$log"
    die "cannot make certificates"
  fi
}

# An elliptic curve: such keys take no time to make.
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

make_authority() {
  openssl req -x509 "${new_key[@]}" -days 3650 -subj /CN=watermill-outbox-test-ca -keyout "$tls/ca-key.pem" -out "$tls/ca.pem"
}

# make_certificate NAME: NAME.pem holds key and certificate, as Kafka takes them.
make_certificate() {
  local files=$tls/$1
  echo 'subjectAltName=IP:127.0.0.1,DNS:kafka.test' >"$files.extensions" &&
    openssl req -new "${new_key[@]}" -subj "/CN=$1" -keyout "$files-key.pem" -out "$files.csr" &&
    openssl x509 -req -in "$files.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca-key.pem" -CAcreateserial \
      -days 3650 -extfile "$files.extensions" -out "$files-cert.pem" &&
    cat "$files-key.pem" "$files-cert.pem" >"$files.pem"
}

# format_data: where $data.formatted exists, $data is complete, whenever we are killed.
format_data() {
  rm -rf "$data"
  mkdir -p "$data"
  if ! "${jvm[@]}" kafka.tools.StorageTool format --cluster-id "$cluster_id" --config "$config" \
    </dev/null >"$home/format.log" 2>&1; then
    show_log "$home/format.log"
    die "cannot format the data folder"
  fi
  touch "$data.formatted"
}

# find_server sets $pid to our Kafka, if it lives.
find_server() {
  pid=$(cat "$home/pid" 2>/dev/null) && runs "$pid" "kafka.Kafka $home/"
}

# is_ours_here: it was started at our address.
is_ours_here() { grep -qF "PLAINTEXT://$address," "$home/server.properties"; }

start() {
  local advice="install a Java runtime (17 or newer), Maven and openssl, or set KAFKA_BROKERS to the addresses of a Kafka"
  local java pid hash home=$state/kafka jars data tls config properties jvm
  local proxied_listeners proxied_advertised proxied_protocols

  if [[ -n ${KAFKA_BROKERS:-} ]]; then
    check_users_server
    return
  fi
  stop_orphan " -Dservices.kafka.log=" KILL
  if already_answers "$address" "stop it, or set SERVICES_KAFKA_PORT or KAFKA_BROKERS"; then
    if secure_listeners_answer; then
      say "answers at $address"
      return
    fi
    if ! find_server || ! is_ours_here; then
      die "the Kafka at $address was started by an older version of another clone, and has no listeners for TLS and SASL; call 'make services-stop' there, or set SERVICES_KAFKA_PORT or KAFKA_BROKERS"
    fi
    say "starting it anew, with listeners for TLS and SASL"
    stop
  fi

  hash=$(cksum <"$here/kafka/pom.xml" | cut -d' ' -f1)
  jars=$home/jars-$hash
  data=$home/data-$hash
  tls=$home/tls
  config=$home/server.properties
  mkdir -p "$home"
  if find_server; then
    if is_ours_here; then
      adopt "$pid" "$address" "$home/log"
      return
    fi
    die "process $pid has $data open, on another port; 'make services-stop' first"
  fi
  find_java || { apt_install default-jre-headless && find_java; } || die "$advice"
  if [[ ! -d $jars ]]; then
    have mvn || apt_install maven || die "$advice"
    fetch_jars
  fi
  have openssl || apt_install openssl || die "$advice"
  make_certificates

  cp "$here/kafka/log4j2.xml" "$home/" # the path of the clone may be one that Java cannot take
  jvm=("$java" -Xms128m -Xmx512m -XX:+ExitOnOutOfMemoryError "-Dlog4j2.configurationFile=$home/log4j2.xml"
    "-Dservices.kafka.log=$home/log" -cp "$jars/*")
  properties=$(<"$here/kafka/server.properties")
  properties=${properties//@PORT@/"$port"}
  properties=${properties//@CONTROLLER_PORT@/"$controller_port"}
  properties=${properties//@SECURE_LISTENERS@/"$secure_listeners"}
  make_proxied_listeners
  properties=${properties//@PROXIED_LISTENERS@/"$proxied_listeners"}
  properties=${properties//@PROXIED_ADVERTISED@/"$proxied_advertised"}
  properties=${properties//@PROXIED_PROTOCOLS@/"$proxied_protocols"}
  properties=${properties//@TLS@/"$tls"}
  properties=${properties//@DATA@/"$data"}
  printf '%s\n' "$properties" >"$config"
  if [[ ! -e $data.formatted ]]; then
    format_data
  fi

  fresh_log "$home/log"
  cd "$data" # for stop_orphan
  detach "$home/stdout" "${jvm[@]}" kafka.Kafka "$config"
  echo $! >"$home/pid"
  wait_until_answering "$address" "$home/log" $! 'Kafka Server started'
}

stop() {
  local pid home=$state/kafka
  if find_server; then
    stop_process "$pid" "kafka.Kafka $home/" TERM KILL
    say "stopped process $pid"
  fi
  rm -f "$home/pid"
}

run_command "$@"
