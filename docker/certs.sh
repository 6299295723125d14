# Makes the certificates and keys once, and puts into each volume what its owner may see.
set -eu
umask 077
chmod 1777 /runs # the host's folder: the server in its container is another user
if [ ! -e /pub/done ]; then
  made=$(mktemp -d)
  fedhet certs --out "$made/tls" --server superlink --client 0 --client 1 --client 2 >/dev/null
  cp "$made/tls/ca.crt" "$made/tls/server.pem" "$made/tls/server.key" /tls/
  cp "$made/tls/ca.crt" "$made"/tls/clients/*.pub /pub/
  for k in 0 1 2; do
    cp "$made/tls/ca.crt" /keys/$k/
    cp "$made/tls/clients/$k" /keys/$k/key
  done
  touch /pub/done
  rm -rf "$made" # the CA's private key with it: new certificates need a new federation
fi
chown -R fedhet:fedhet /tls /pub /keys
chmod -R u=rwX,go= /tls /pub /keys
