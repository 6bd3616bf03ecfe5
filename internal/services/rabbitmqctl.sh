#!/usr/bin/env bash
# Runs rabbitmqctl against the node of 'make services', whichever clone started it:
# rabbitmqctl.sh set_vm_memory_high_watermark 0
service=rabbitmqctl
preferred_user=rabbitmq
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=internal/services/rabbitmq/node.sh
source "$here/rabbitmq/node.sh"

# A test that raises an alarm on a server that it does not use would wait for nothing.
if [[ -n ${AMQP_URI:-} ]]; then
  named=$(address_of "$AMQP_URI")
  if [[ ${named/localhost/127.0.0.1} != "$address" ]]; then
    die "AMQP_URI is set, and not to the node at $address"
  fi
fi

choose_user
find_programs || die "RabbitMQ is not installed"
find_node || die "no node of ours runs at $address; 'make services' first"
if ! "${as_server_user[@]}" test -r "$home/.erlang.cookie"; then
  die "the node at $address runs as another user"
fi
set_environment "$home"
bounded "$timeout_seconds" "${in_environment[@]}" "$bin/rabbitmqctl" "$@"
