// Package promexporter is the exporter that serves /metrics. It replaces the stock exporter of the same name, `prometheus`, and serves
// the same names, labels, types, help texts and values.
//
// It promises that a value is encoded when it changes and not when it is scraped: a scrape joins the families' cached text, and
// the compressed page is made once for each change. A series whose source stopped disappears after metric_expiration, and at once
// if its source says that it ended. Consuming never waits for a scraper.
//
// It does not promise exemplars or created timestamps, which the text format cannot carry, nor exponential histograms as native
// ones: they need protobuf and are served as a count and a sum.
package promexporter
