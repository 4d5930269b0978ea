// Package alerts brings the alerts of deploy/chart/files/monitoring to fire by real
// trouble: a real Prometheus scrapes the daemons and operators of labs in each
// mode. Durations of the rules are a thirtieth or less of what users have. It is
// built with the tag e2e and run by make e2e.
package alerts
