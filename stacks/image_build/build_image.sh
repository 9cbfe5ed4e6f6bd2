#!/usr/bin/env bash
# Builds and pushes the adapter's image under its content's tag, and prints the digest that the repository gave it.
# From the repository's root, with REPOSITORY_NAME, REPOSITORY_URI, IMAGE_TAG, BASE_IMAGE, BINDING_COMMIT.
set -euo pipefail

# The repository's own word on the digest; "None" where it has no such tag.
digest_of_tag() {
    aws ecr batch-get-image --repository-name "$REPOSITORY_NAME" --image-ids "imageTag=$IMAGE_TAG" \
        --query 'images[0].imageId.imageDigest' --output text
}

digest=$(digest_of_tag)
if [ "$digest" = None ]; then
    # Everything but the digest goes to the log.
    {
        aws ecr get-login-password | docker login --username AWS --password-stdin "${REPOSITORY_URI%%/*}"
        # SageMaker has refused OCI manifests and attestations: one plain Docker image for its one platform.
        docker buildx build --provenance=false --output type=docker --platform linux/amd64 \
            --build-context requirements=requirements \
            --build-arg "BASE_IMAGE=$BASE_IMAGE" --build-arg "BINDING_COMMIT=$BINDING_COMMIT" \
            --tag "$REPOSITORY_URI:$IMAGE_TAG" container/
        docker push "$REPOSITORY_URI:$IMAGE_TAG"
    } >&2
    digest=$(digest_of_tag)
else
    echo "$REPOSITORY_URI:$IMAGE_TAG is there already" >&2
fi
if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
    echo "error: $REPOSITORY_URI:$IMAGE_TAG has no digest after its push, but: $digest" >&2
    exit 1
fi
echo "$digest"
