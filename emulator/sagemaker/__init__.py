"""Amazon SageMaker hosting: the control plane, and a data plane of real processes."""
