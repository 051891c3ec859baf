"""Real kernels with real KVM inside an emulator: no hardware virtualization needed."""
