"""All knowledge of KVM: facts per kernel, policies, and rules as pure functions of them."""
