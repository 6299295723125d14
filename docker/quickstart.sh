# Submits the quickstart to the server whose network this container shares; results go to /runs.
set -eu
exec fedhet run quickstart "clients=3" out=/runs ${FEDHET_OVERRIDES:-} --superlink /tls
