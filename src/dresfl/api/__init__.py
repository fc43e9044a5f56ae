"""What a notebook needs: plan, simulate, models."""
