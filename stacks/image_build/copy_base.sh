#!/usr/bin/env bash
# Copies a base image into the account's own repository, and prints the digest that it has there.
# SageMaker may refuse an image of another registry. Docker writes its own manifest, of the schema that SageMaker takes:
# the copy's digest is not the source's. With REPOSITORY_NAME, REPOSITORY_URI, IMAGE_TAG, SOURCE_IMAGE (by digest).
set -euo pipefail
. "$(dirname "$0")/ecr.sh"

copy() {
    log_in_to "$SOURCE_IMAGE"
    docker pull "$SOURCE_IMAGE"
    docker tag "$SOURCE_IMAGE" "$REPOSITORY_URI:$IMAGE_TAG"
    log_in_to "$REPOSITORY_URI"
    docker push "$REPOSITORY_URI:$IMAGE_TAG"
}

print_digest_made_by copy
