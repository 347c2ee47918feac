"""An order is paid; stock, points and reconciliation each learn of it once."""
