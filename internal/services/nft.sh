#!/usr/bin/env bash
# Installs nft, with which the fault suite drops packets: nft.sh install
service=nft
# shellcheck source=internal/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ ${1:-} == install ]] || die "usage: $0 install"
choose_user
open_state
lock
if ! have nft; then
  apt_install nftables || die "nft is not installed, and cannot be"
fi
nft list tables >/dev/null || die "nft may not be used here; it takes root, and CAP_NET_ADMIN in a container"
