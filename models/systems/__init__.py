"""What a training is made of besides one window: epochs, schedules, state, ranks, memory, resuming."""
