"""What a person sees: charts, the live panel, words."""
