// Package alerts checks that the alerts of deploy/chart/files/monitoring fire: a real Prometheus
// scrapes the daemons and operators of labs in each mode, with durations a thirtieth or less of those
// of the chart. It has the tag e2e and is run by make e2e.
package alerts
