# What both image builds ask of ECR: sourced, with REPOSITORY_NAME, REPOSITORY_URI and IMAGE_TAG set.

# The repository's own word on the digest; "None" where it has no such tag.
digest_of_tag() {
    aws ecr batch-get-image --repository-name "$REPOSITORY_NAME" --image-ids "imageTag=$IMAGE_TAG" \
        --query 'images[0].imageId.imageDigest' --output text
}

# The registry of an image or a repository.
log_in_to() {
    aws ecr get-login-password | docker login --username AWS --password-stdin "${1%%/*}"
}

# Makes sure that the repository has the tag, with the function that is named and pushes it; prints the digest, and
# nothing else, on standard output: everything before it goes to the log.
print_digest_made_by() {
    local digest
    digest=$(digest_of_tag)
    if [ "$digest" = None ]; then
        "$1" >&2
        digest=$(digest_of_tag)
    else
        echo "$REPOSITORY_URI:$IMAGE_TAG is there already" >&2
    fi
    if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
        echo "error: $REPOSITORY_URI:$IMAGE_TAG has no digest after its push, but: $digest" >&2
        return 1
    fi
    echo "$digest"
}
