"""Many of something over time, by the rules of KVM and costs: bursts of new VMs, fleets."""
