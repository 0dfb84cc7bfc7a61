// SPDX-License-Identifier: GPL-2.0

//! Draws the screen. Every view fits 80 columns and 24 lines; a larger screen shows more rows.

use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, TableState, Wrap};
use ratatui::Frame;

use super::model::{Model, View};
use super::tables::{self, Table};

const HELP: &[&str] = &[
    "1 d   disks of this machine: rates, requests in flight, how long one takes",
    "2 p   their paths",
    "3 t   what this machine exports: volumes, ports, clients",
    "4 l   how long requests are in each state",
    "Tab   the next of these",
    "",
    "Up k, Down j   move the selection",
    "m     start or stop measuring how long requests take; needs root",
    "+ -   update half as often, or twice as often",
    "Space pause, continue",
    "q     quit",
    "",
    "Rates are those of the last interval. READ-B/s and WRITE-B/s are bytes,",
    "K is 1024 of them. MEAN is the mean latency; HALF, 99 % and ALL are",
    "latency bounds: that share finished sooner. All four need measuring.",
];

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let width = usize::from(frame.area().width.max(1));
    let message = model
        .message
        .as_ref()
        .map_or(1, |text| text.len().div_ceil(width));
    let [top, body, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(u16::try_from(message.clamp(1, 4)).unwrap_or(1)),
    ])
    .areas(frame.area());
    title(frame, model, top);
    if model.shows_help {
        let lines: Vec<_> = HELP.iter().map(|line| Line::raw(*line)).collect();
        frame.render_widget(Paragraph::new(lines), body);
    } else {
        match model.view {
            View::Disks => with_details(
                frame,
                body,
                &tables::disks(&model.seen),
                Some(model.selected),
                &tables::about_disk(&model.seen, model.selected),
                "no disk is connected: hcablk connect",
            ),
            View::Paths => with_details(
                frame,
                body,
                &tables::paths(&model.seen),
                Some(model.selected),
                &tables::about_path(&model.seen, model.selected),
                "no disk is connected: hcablk connect",
            ),
            View::Target => target(frame, model, body),
            View::Latency => latency(frame, model, body),
        }
    }
    foot(frame, model, bottom);
}

fn title(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let [first, second] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let left = Line::from(vec![
        Span::raw("hcablk top  ").bold(),
        Span::raw(model.host.clone()),
    ]);
    // Without the fractions of the second.
    let clock = model.time.split('.').next().unwrap_or_default();
    let clock = clock.replace('T', " ");
    let seconds = model.interval.as_millis();
    let paused = if model.is_paused { "  PAUSED" } else { "" };
    let right = format!(
        "every {}.{} s{paused}  {clock} UTC",
        seconds / 1000,
        seconds % 1000 / 100
    );
    frame.render_widget(Paragraph::new(left), first);
    frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), first);
    let mut tabs = Vec::new();
    for (number, view) in View::ALL.into_iter().enumerate() {
        let style = if view == model.view {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        tabs.push(Span::styled(
            format!(" {} {} ", number + 1, view.name()),
            style,
        ));
        tabs.push(Span::raw(" "));
    }
    frame.render_widget(Paragraph::new(Line::from(tabs)), second);
}

fn foot(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let line = match &model.message {
        Some(message) => Line::raw(message.clone()).bold(),
        None => Line::raw(
            "q end  Tab view  Up/Down select  m measure  +/- interval  Space pause  ? help",
        ),
    };
    frame.render_widget(Paragraph::new(line).wrap(Wrap { trim: true }), area);
}

fn colour(cell: &str) -> Style {
    match cell {
        "live" | "enabled" | "listens" => Style::new().fg(Color::Green),
        "degraded" | "connecting" | "waiting" | "queueing" => Style::new().fg(Color::Yellow),
        "failed" | "failing" | "failing-fast" | "refused" | "lost" | "lost-writes" => {
            Style::new().fg(Color::Red)
        }
        _ => Style::new(),
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, table: &Table, selected: Option<usize>, none: &str) {
    if table.rows.is_empty() {
        frame.render_widget(Paragraph::new(none.to_owned()), area);
        return;
    }
    let is_right = |column: usize| table.heading[column].starts_with('>');
    let cell = |column: usize, text: &str| {
        let line = Line::styled(text.to_owned(), colour(text));
        Cell::new(if is_right(column) {
            line.right_aligned()
        } else {
            line
        })
    };
    let row = |cells: &[String]| {
        Row::new(
            cells
                .iter()
                .enumerate()
                .map(|(column, text)| cell(column, text)),
        )
    };
    let heading: Vec<_> = table
        .heading
        .iter()
        .map(|text| text.trim_start_matches('>').to_owned())
        .collect();
    let widths = table.widths.iter().map(|width| match width {
        0 => Constraint::Min(8),
        width => Constraint::Length(*width),
    });
    let widget = ratatui::widgets::Table::new(table.rows.iter().map(|cells| row(cells)), widths)
        .header(row(&heading).bold())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(widget, area, &mut state);
}

/// Draws a table, and below it the lines about the selected row.
fn with_details(
    frame: &mut Frame<'_>,
    area: Rect,
    rows: &Table,
    selected: Option<usize>,
    details: &[String],
    none: &str,
) {
    let width = usize::from(area.width.max(1));
    let height = details
        .iter()
        .map(|line| line.chars().count().div_ceil(width).max(1));
    let height = u16::try_from(height.sum::<usize>()).unwrap_or(u16::MAX);
    let [above, _, below] = Layout::vertical([
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Max(height.min(area.height / 2)),
    ])
    .areas(area);
    table(frame, above, rows, selected, none);
    let lines: Vec<_> = details.iter().map(|line| Line::raw(line.clone())).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), below);
}

fn target(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let ports = tables::ports(&model.seen);
    let height = u16::try_from(ports.rows.len() + 1).unwrap_or(u16::MAX);
    let [above, below] = Layout::vertical([
        Constraint::Min(6),
        Constraint::Max(height.min(area.height / 3)),
    ])
    .areas(area);
    with_details(
        frame,
        above,
        &tables::volumes(&model.seen),
        Some(model.selected),
        &tables::about_volume(&model.seen, model.selected),
        "nothing is exported: hcablk target export",
    );
    table(frame, below, &ports, None, "no port listens");
}

fn latency(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let rows = tables::latency(&model.seen);
    let none = if model.is_measuring() {
        "nothing was measured yet"
    } else {
        "times are not measured: m starts"
    };
    table(frame, area, &rows, Some(model.selected), none);
}
