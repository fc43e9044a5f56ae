"""What a notebook needs: plan, simulate, models. `import dresfl as dr` offers it all."""
