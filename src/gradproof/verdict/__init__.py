"""Plan, policy and judge: from evidence to a verdict. Pure: nothing is run here."""
