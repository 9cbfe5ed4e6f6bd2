#!/usr/bin/env bash
# Builds and pushes the adapter's image under its content's tag, and prints the digest that the repository gave it.
# From the repository's root, with REPOSITORY_NAME, REPOSITORY_URI, IMAGE_TAG, BASE_IMAGE, BINDING_COMMIT.
set -euo pipefail
. "$(dirname "$0")/ecr.sh"

build_and_push() {
    log_in_to "$REPOSITORY_URI"
    # SageMaker has refused OCI manifests and attestations: one plain Docker image for its one platform.
    docker buildx build --provenance=false --output type=docker --platform linux/amd64 \
        --build-context requirements=requirements \
        --build-arg "BASE_IMAGE=$BASE_IMAGE" --build-arg "BASE_DIGEST=${BASE_IMAGE##*@}" \
        --build-arg "BINDING_COMMIT=$BINDING_COMMIT" --build-arg "SOURCE_REVISION=${IMAGE_TAG#adapter-}" \
        --tag "$REPOSITORY_URI:$IMAGE_TAG" container/
    docker push "$REPOSITORY_URI:$IMAGE_TAG"
}

print_digest_made_by build_and_push
