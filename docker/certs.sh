# Makes the certificates and keys once, and puts into each volume what its owner may see.
set -eu
umask 077
[ ! -e /tls/ca.crt ] || exit 0
made=$(mktemp -d)
fedhet certs --out "$made/tls" --server server --client 0 --client 1 --client 2 >/dev/null
for k in 0 1 2; do
  cp "$made/tls/ca.crt" "$made/tls/clients/$k" "$made/tls/clients/$k.crt" "/keys/$k/"
done
mkdir -p /tls/clients
cp "$made"/tls/clients/*.pub /tls/clients/
cp "$made/tls/server.pem" "$made/tls/server.key" /tls/
cp "$made/tls/ca.crt" /tls/ # last: it says that all is there
rm -rf "$made"              # the CA's private key with it: new certificates need a new federation
