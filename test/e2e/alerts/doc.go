// Package alerts checks that the alerts in deploy/chart/files/monitoring fire: a real Prometheus scrapes the daemons
// and operators of labs in each mode, with durations scaled down by a factor of 30 or more. It has the build tag e2e
// and is run by make e2e.
package alerts
