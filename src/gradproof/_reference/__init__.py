"""The reference workspace, carried in the wheel."""
