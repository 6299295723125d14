# SuperNode K of N with the K-th share of a public data set; see docs/deploy.md for own images.
# nice: the SuperLink on the same machine must not wait for the CPU (it would lose replies).
set -eu
exec nice flower-supernode --root-certificates /tls/ca.crt --superlink superlink:8443 \
  --auth-supernode-private-key /tls/key --host 127.0.0.1 --port 9094 \
  --node-config "partition-id=$1 num-partitions=$2 state-dir=\"/var/lib/fedhet/state\""
