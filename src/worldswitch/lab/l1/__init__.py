"""What runs inside the lab's machine."""
