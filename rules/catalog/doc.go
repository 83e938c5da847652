// Package catalog holds one record per alerting condition, as YAML files in this folder, and renders what is made of them: Prometheus
// rule files, their unit tests, the fixed part of each runbook page, the index of runbooks and docs/alerts.md.
//
// It promises that a catalog which loads has no unknown field, no missing field, no id or alert twice, and no severity, stability or
// area outside its lists. Every fault is reported with file, line and reason, all at once.
//
// It does not evaluate expressions: its tests do, with the query engine and the alerting rules of Prometheus. It writes no files
// either; generated_test.go compares what is committed, and rewrites it with -update.
package catalog
