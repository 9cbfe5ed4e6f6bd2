"""The CDK constructs: everything that an environment makes on AWS, and the dataclass that says what differs."""
