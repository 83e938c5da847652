// Package build makes Pitcrew's Grafana dashboards from one table of panels each, with the Grafana Foundation SDK.
//
// It promises that every panel has a unit and a description, that thresholds are explained in that description, that all boards share
// variables, links and incident annotations, and that the same tables give the same JSON. It writes no files: the tests of package
// dashboards compare what is committed, and rewrite it with -update. No program imports it; programs embed the JSON.
package build
