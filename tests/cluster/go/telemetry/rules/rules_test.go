// Alerts fire when they should, and otherwise do not: rules over what a pod may have shown, evaluated once a minute as
// Prometheus does.
package main

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const rules = "../../../../../charts/foretoken/monitoring/rules.yaml"

func rule(t *testing.T, alert string) rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	groups, problems := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == alert {
				return rule
			}
		}
	}
	t.Fatalf("there is no %s", alert)
	panic("unreachable")
}

// What pods have shown, a value a minute, of which queries read.
type shown []storage.Series

// Of lines of series as promtool has them.
func show(t *testing.T, lines string) shown {
	t.Helper()
	var all shown
	for line := range strings.Lines(lines) {
		of, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(line)
		if err != nil {
			t.Fatal(err)
		}
		var samples []chunks.Sample
		for minute, value := range values {
			if !value.Omitted {
				samples = append(samples, sample{int64(minute) * 60_000, value.Value})
			}
		}
		all = append(all, storage.NewListSeries(of, samples))
	}
	return all
}

func (all shown) Querier(_, _ int64) (storage.Querier, error) {
	asked := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &found{index: -1}
		for _, series := range all {
			fits := func(matcher *labels.Matcher) bool { return matcher.Matches(series.Labels().Get(matcher.Name)) }
			if !slices.ContainsFunc(matchers, func(matcher *labels.Matcher) bool { return !fits(matcher) }) {
				set.series = append(set.series, series)
			}
		}
		return set
	}
	return &storage.MockQuerier{SelectMockFunction: asked}, nil
}

type found struct {
	series []storage.Series
	index  int
}

func (set *found) Next() bool {
	set.index++
	return set.index < len(set.series)
}
func (set *found) At() storage.Series                { return set.series[set.index] }
func (set *found) Err() error                        { return nil }
func (set *found) Warnings() annotations.Annotations { return nil }

type sample struct {
	at    int64
	value float64
}

func (it sample) T() int64                      { return it.at }
func (it sample) ST() int64                     { return 0 }
func (it sample) F() float64                    { return it.value }
func (it sample) H() *histogram.Histogram       { return nil }
func (it sample) FH() *histogram.FloatHistogram { return nil }
func (it sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (it sample) Copy() chunks.Sample           { return it }

// The minutes of the first hour in which an alert fires; the series are of one pod.
func firing(t *testing.T, alert, series string) []int {
	t.Helper()
	rule := rule(t, alert)
	all := show(t, series)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	defer engine.Close()
	var fires []int
	since := -1
	for minute := range 60 {
		query, err := engine.NewInstantQuery(t.Context(), all, nil, rule.Expr, time.Unix(60*int64(minute), 0))
		if err != nil {
			t.Fatal(err)
		}
		active, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		if len(active) == 0 {
			since = -1
		} else if since < 0 {
			since = minute
		}
		query.Close()
		if since >= 0 && time.Duration(minute-since)*time.Minute >= time.Duration(rule.For) {
			fires = append(fires, minute)
		}
	}
	return fires
}

func minutes(from, to int) []int {
	var all []int
	for minute := from; minute < to; minute++ {
		all = append(all, minute)
	}
	return all
}

// In a cluster a router lists targets that are ready, so there is none where none is ready.
func TestARouterWithoutTargetsIsToldOfUnlessItIsNew(t *testing.T) {
	for name, one := range map[string]struct {
		ready  string
		wanted []int
	}{
		"it has its targets":               {"2x59", nil},
		"one of two is lost":               {"2x9 1x49", nil},
		"the last is lost":                 {"1x9 0x49", minutes(12, 60)},
		"the last is lost and comes again": {"1x9 0x19 1x29", minutes(12, 30)},
		"it is lost for a minute":          {"1x9 0x0 1x48", nil},
		"targets still load":               {"0x9 1x49", nil},
		"targets never come":               {"0x59", minutes(17, 60)},
		"the router goes too":              {"1x9 0x0 stale", nil},
	} {
		t.Run(name, func(t *testing.T) {
			of := `{namespace="chat",pod="story-router-1"} ` + one.ready + "\n"
			fires := firing(t, "ForetokenNoTargetReady", "foretoken_targets_ready"+of+"foretoken_targets_listed"+of)
			if !slices.Equal(fires, one.wanted) {
				t.Errorf("it fires in the minutes %v, not %v", fires, one.wanted)
			}
		})
	}
}

// Endpoints that stay away are counted once.
func TestATargetWithoutItsEndpointsIsToldOfUnlessItHasNone(t *testing.T) {
	for name, one := range map[string]struct {
		up, lost, unreachable string
		wanted                []int
	}{
		"it has its endpoint":        {"1x59", "0x59", "_x59", nil},
		"it has none to reach":       {"0x59", "_x59", "_x59", nil},
		"the pool is gone":           {"1x9 0x49", "_x9 1x49", "_x10 1x48", minutes(20, 60)},
		"the pool was never reached": {"0x59", "_x59", "1x59", minutes(10, 60)},
		"the pool is replaced":       {"1x9 0x4 1x44", "_x9 1x49", "_x10 1x48", nil},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(metric, kind, values string) string {
				return metric + `{namespace="chat",pod="story-target-1",path="cpu"` + kind + "} " + values + "\n"
			}
			series := of("foretoken_links_up", "", one.up) +
				of("foretoken_link_failures_total", `,kind="lost"`, one.lost) +
				of("foretoken_link_failures_total", `,kind="unreachable"`, one.unreachable)
			if fires := firing(t, "ForetokenEndpointsLost", series); !slices.Equal(fires, one.wanted) {
				t.Errorf("it fires in the minutes %v, not %v", fires, one.wanted)
			}
		})
	}
}
