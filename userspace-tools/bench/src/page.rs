// SPDX-License-Identifier: GPL-2.0

//! One self-contained HTML page: text, tables and plots.

use std::fmt::Write as _;

use hcablk::error::{Error, Kind, Result};
use plotters::prelude::*;

/// The points of one curve, and its name.
pub(crate) struct Curve {
    /// The name in the legend.
    pub(crate) name: String,
    /// The points of the curve, by x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The x axis of a plot.
#[derive(Clone, Copy)]
pub(crate) enum Axis {
    /// Sizes of requests, by powers of two.
    Size,
    /// Numbers by powers of two, with this description.
    Doubling(&'static str),
    /// Numbers from 0, with this description.
    Linear(&'static str),
}

impl Axis {
    fn place(self, x: f64) -> f64 {
        match self {
            Self::Size | Self::Doubling(_) => x.log2(),
            Self::Linear(_) => x,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Size => "size of a request",
            Self::Doubling(text) | Self::Linear(text) => text,
        }
    }

    /// Returns the label of a place; empty if the place has none.
    fn label(self, place: f64) -> String {
        let is_whole = (place - place.round()).abs() < 0.01;
        match self {
            Self::Size if is_whole => size_text(place),
            Self::Doubling(_) if is_whole => format!("{:.0}", place.exp2()),
            Self::Linear(_) => format!("{}", (place * 1000.0).round() / 1000.0),
            _ => String::new(),
        }
    }
}

/// The parts of stacked bars that have one meaning.
pub(crate) struct Layer {
    /// The name in the legend.
    pub(crate) name: String,
    /// The height in each bar.
    pub(crate) heights: Vec<f64>,
}

/// A page under construction.
pub(crate) struct Page {
    title: String,
    body: String,
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = "body{font:16px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
    .real,.unreal{padding:.6rem 1rem;border-left:.4rem solid #2a7;background:#efe;font-weight:600}\
    .unreal{border-color:#c60;background:#fff4e5}table{border-collapse:collapse;margin:1rem 0}\
    td,th{border:1px solid #ccc;padding:.25rem .6rem;text-align:left;vertical-align:top}\
    td.number{text-align:right;font-variant-numeric:tabular-nums}.pass{color:#175}.fail{color:#b00;font-weight:700}\
    .not-possible{color:#777}pre{background:#f5f5f5;padding:.6rem;overflow:auto}svg{max-width:100%;height:auto}";

impl Page {
    /// Begins a page; its first line says whether the times on it are real.
    pub(crate) fn new(title: &str, (are_real, sentence): &(bool, String)) -> Self {
        let class = if *are_real { "real" } else { "unreal" };
        let body = format!(
            "<p class=\"{class}\">{}</p>\n<h1>{}</h1>\n",
            escape(sentence),
            escape(title)
        );
        Self {
            title: title.to_owned(),
            body,
        }
    }

    /// Adds a heading.
    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph.
    pub(crate) fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// Adds text that keeps its lines.
    pub(crate) fn verbatim(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
    }

    /// Adds a table. A cell `pass`, `fail` or `not possible` gets its colour.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.body.push_str("<table><tr>");
        for cell in head {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        self.body.push_str("</tr>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for cell in row {
                let (class, text) = (class(cell), escape(cell));
                let _ = write!(self.body, "<td class=\"{class}\">{text}</td>");
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</table>\n");
    }

    /// Adds a plot.
    pub(crate) fn plot(
        &mut self,
        title: &str,
        axis: Axis,
        unit: &str,
        curves: &[Curve],
    ) -> Result<()> {
        let text = plot(title, axis, unit, curves)?;
        self.figure(&text);
        Ok(())
    }

    /// Adds a plot of stacked bars; each bar has a name.
    pub(crate) fn bars(
        &mut self,
        title: &str,
        unit: &str,
        names: &[String],
        layers: &[Layer],
    ) -> Result<()> {
        let text = bars(title, unit, names, layers)?;
        self.figure(&text);
        Ok(())
    }

    fn figure(&mut self, text: &str) {
        let _ = writeln!(self.body, "<figure>{text}</figure>");
    }

    /// Returns the page.
    pub(crate) fn finish(self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>{}</title><style>{STYLE}</style></head>\n<body>\n{}</body></html>\n",
            escape(&self.title),
            self.body
        )
    }
}

fn class(cell: &str) -> &'static str {
    match cell {
        "pass" => "pass",
        "fail" => "fail",
        "not possible" => "not-possible",
        _ if cell.starts_with(|first: char| first.is_ascii_digit()) => "number",
        _ => "text",
    }
}

/// Returns the text of the size whose binary logarithm is `log2`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exponents of sizes"
)]
fn size_text(log2: f64) -> String {
    bytes(1 << (log2.round().clamp(0.0, 62.0) as u32))
}

/// Returns a size in its largest unit.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        1_048_576.. if bytes % 1_048_576 == 0 => format!("{} MiB", bytes >> 20),
        1024.. if bytes % 1024 == 0 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn undrawn(title: &str, error: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("cannot draw the plot \"{title}\": {error}"),
    )
}

fn plot(title: &str, axis: Axis, unit: &str, curves: &[Curve]) -> Result<String> {
    let failed = |error: String| undrawn(title, &error);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let fold = |least: f64, most: f64, value: f64| (least.min(value), most.max(value));
    let (least, most) = points().fold((f64::MAX, 0.0), |(least, most), (x, _)| {
        fold(least, most, axis.place(*x))
    });
    let highest = points().fold(0.0_f64, |most, (_, y)| most.max(*y));
    if highest <= 0.0 {
        return Err(failed("there are no points".to_owned()));
    }
    let margin = match axis {
        Axis::Linear(_) => (most - least) * 0.02 + 1e-6,
        _ => 0.2,
    };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (900, 420)).into_drawing_area();
        let draw = || -> std::result::Result<(), String> {
            let error = |error: &dyn std::error::Error| error.to_string();
            area.fill(&WHITE).map_err(|why| error(&why))?;
            let mut chart = ChartBuilder::on(&area)
                .caption(title, ("sans-serif", 20))
                .margin(12)
                .x_label_area_size(42)
                .y_label_area_size(80)
                .build_cartesian_2d((least - margin)..(most + margin), 0.0..highest * 1.1)
                .map_err(|why| error(&why))?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .x_labels(12)
                .x_label_formatter(&|x| axis.label(*x))
                .y_desc(unit)
                .x_desc(axis.description())
                .draw()
                .map_err(|why| error(&why))?;
            for (number, curve) in curves.iter().enumerate() {
                let color = Palette99::pick(number).to_rgba();
                let points: Vec<(f64, f64)> = curve
                    .points
                    .iter()
                    .map(|(x, y)| (axis.place(*x), *y))
                    .collect();
                let line = LineSeries::new(points.clone(), color.stroke_width(2));
                chart
                    .draw_series(line)
                    .map_err(|why| error(&why))?
                    .label(&curve.name)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
                    });
                let dots = points
                    .into_iter()
                    .map(|point| Circle::new(point, 3, color.filled()));
                chart.draw_series(dots).map_err(|why| error(&why))?;
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .map_err(|why| error(&why))?;
            area.present().map_err(|why| error(&why))
        };
        draw().map_err(failed)?;
    }
    Ok(text)
}

/// Returns the lower and the upper edge of each layer in each bar, by layer.
fn edges(bars: usize, layers: &[Layer]) -> Vec<Vec<(f64, f64)>> {
    let mut tops = vec![0.0; bars];
    let stacked = layers.iter().map(|layer| {
        let heights = layer.heights.iter().zip(&mut tops);
        heights
            .map(|(height, top)| {
                let bottom = *top;
                *top += height;
                (bottom, *top)
            })
            .collect()
    });
    stacked.collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of bars"
)]
fn bars(title: &str, unit: &str, names: &[String], layers: &[Layer]) -> Result<String> {
    let failed = |error: String| undrawn(title, &error);
    let edges = edges(names.len(), layers);
    let highest = edges
        .iter()
        .flatten()
        .fold(0.0_f64, |most, (_, top)| most.max(*top));
    if highest <= 0.0 {
        return Err(failed("there are no bars".to_owned()));
    }
    // Many names have no room next to each other: they are turned.
    let is_crowded = names.len() > 8;
    let font = ("sans-serif", 12).into_font();
    let font = if is_crowded {
        font.transform(FontTransform::Rotate90)
    } else {
        font
    };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (900, 420)).into_drawing_area();
        let draw = || -> std::result::Result<(), String> {
            let error = |error: &dyn std::error::Error| error.to_string();
            area.fill(&WHITE).map_err(|why| error(&why))?;
            let mut chart = ChartBuilder::on(&area)
                .caption(title, ("sans-serif", 20))
                .margin(12)
                .x_label_area_size(if is_crowded { 110 } else { 42 })
                .y_label_area_size(80)
                .build_cartesian_2d(-0.6..(names.len() as f64 - 0.4), 0.0..highest * 1.3)
                .map_err(|why| error(&why))?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(TRANSPARENT)
                .x_labels(names.len() + 2)
                .x_label_style(font)
                .x_label_formatter(&|x| {
                    let is_bar = (x - x.round()).abs() < 0.01 && *x > -0.5;
                    let name = names.get(x.round().max(0.0) as usize);
                    name.filter(|_| is_bar).cloned().unwrap_or_default()
                })
                .y_desc(unit)
                .draw()
                .map_err(|why| error(&why))?;
            for (number, (layer, edges)) in layers.iter().zip(&edges).enumerate() {
                let color = Palette99::pick(number).to_rgba();
                let boxes = edges.iter().enumerate().map(|(bar, (bottom, top))| {
                    let middle = bar as f64;
                    let corners = [(middle - 0.35, *bottom), (middle + 0.35, *top)];
                    Rectangle::new(corners, color.filled())
                });
                chart
                    .draw_series(boxes)
                    .map_err(|why| error(&why))?
                    .label(&layer.name)
                    .legend(move |(x, y)| {
                        Rectangle::new([(x, y - 5), (x + 20, y + 5)], color.filled())
                    });
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .map_err(|why| error(&why))?;
            area.present().map_err(|why| error(&why))
        };
        draw().map_err(failed)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_nothing_from_elsewhere_and_escapes_what_it_shows() -> Result<()> {
        let mut page = Page::new("A <title>", &(false, "An emulator's & no more.".to_owned()));
        page.table(
            &["check", "outcome"],
            &[vec!["a<b".to_owned(), "pass".to_owned()]],
        );
        let curve = Curve {
            name: "one".to_owned(),
            points: vec![(4096.0, 1.0), (1_048_576.0, 3.0)],
        };
        page.plot("bandwidth", Axis::Size, "MB/s", &[curve])?;
        let text = page.finish();
        // The namespace of SVG is a name, not an address that is fetched.
        let text_without_names = text.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "src=", "@import", "<link", "<script"] {
            assert!(!text_without_names.contains(foreign), "{foreign}");
        }
        assert!(text.contains("a&lt;b") && text.contains("An emulator's &amp; no more."));
        assert!(text.find("emulator").unwrap_or(usize::MAX) < text.find("<h1>").unwrap_or(0));
        for label in ["4 KiB", "1 MiB", "<polyline"] {
            assert!(text.contains(label), "{label}");
        }
        Ok(())
    }

    #[test]
    fn a_plot_without_points_is_an_error() {
        assert!(plot("empty", Axis::Size, "MB/s", &[]).is_err());
        assert!(bars("empty", "µs", &[], &[]).is_err());
    }

    #[test]
    fn layers_of_a_bar_are_stacked_and_named() -> Result<()> {
        let layer = |name: &str, heights: [f64; 2]| Layer {
            name: name.to_owned(),
            heights: heights.to_vec(),
        };
        let layers = [layer("drive", [2.0, 3.0]), layer("wire", [1.0, 0.5])];
        let edges = edges(2, &layers);
        assert_eq!(edges, [[(0.0, 2.0), (0.0, 3.0)], [(2.0, 3.0), (3.0, 3.5)]]);
        let names = ["4 KiB".to_owned(), "1 MiB".to_owned()];
        let text = bars("parts", "µs", &names, &layers)?;
        for label in ["4 KiB", "1 MiB", "drive", "wire", "parts"] {
            assert!(text.contains(label), "{label}");
        }
        Ok(())
    }

    #[test]
    fn axes_label_their_places() {
        assert_eq!(Axis::Size.label(12.0), "4 KiB");
        assert_eq!(Axis::Doubling("volumes").label(3.0), "8");
        assert_eq!(Axis::Doubling("volumes").label(3.5), "");
        assert_eq!(Axis::Linear("ms").label(2.5), "2.5");
    }
}
