# Writes the digest of the newest base image to docker/.env, so that every build uses that one:
#   sh docker/base.sh [IMAGE]
set -eu
image=${1:-python:3.12-slim-bookworm}
digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}')
printf 'FEDHET_BASE=%s@%s\n' "${image%:*}" "$digest" | tee "$(dirname "$0")/.env"
