// SPDX-License-Identifier: GPL-2.0

//! The state of the screen, and how keys change it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::seen::Seen;
use super::tables;
use crate::error::Result;
use crate::events::utc;
use crate::host_names::HostNames;
use crate::initiator;
use crate::stats::{disks, volumes, Snapshot};
use crate::system::System;
use crate::target;
use crate::times::Times;

/// One of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The disks of this machine.
    Disks,
    /// The paths of the disks.
    Paths,
    /// The exports of this machine.
    Target,
    /// The time that requests spend in each state.
    Latency,
}

impl View {
    /// All views, in the order in which they are shown.
    pub(super) const ALL: [Self; 4] = [Self::Disks, Self::Paths, Self::Target, Self::Latency];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disks => "Disks",
            Self::Paths => "Paths",
            Self::Target => "Target",
            Self::Latency => "Latency",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|view| *view == self);
        Self::ALL[at.map_or(0, |at| (at + 1) % Self::ALL.len())]
    }
}

/// The values of all views, and the selected view.
pub struct Model {
    pub(super) host: String,
    pub(super) time: String,
    pub(super) interval: Duration,
    pub(super) view: View,
    pub(super) selected: usize,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) message: Option<String>,
    pub(super) seen: Seen,
    before: Option<(Snapshot, Snapshot)>,
}

impl Model {
    /// Makes a model before its first sample.
    pub fn new(system: &dyn System, interval: Duration) -> Self {
        Self {
            host: system.host_name(),
            time: String::new(),
            interval,
            view: View::Disks,
            selected: 0,
            is_paused: false,
            shows_help: false,
            message: None,
            seen: Seen::default(),
            before: None,
        }
    }

    /// Returns the time between two samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes a sample of all values.
    pub fn look(&mut self, system: &dyn System) -> Result<()> {
        let devices = initiator::devices(system)?;
        let exports = target::exports(system)?;
        if devices.is_none() && exports.is_none() {
            self.message = Some("no module is loaded: nothing is connected or exported".to_owned());
        }
        let now = (disks(system, None)?, volumes(system, None)?);
        if let Some(before) = &self.before {
            self.seen.disk_rates = now.0.since(&before.0);
            self.seen.volume_rates = now.1.since(&before.1);
        } else if devices.is_none() {
            // This machine is only a target.
            self.view = View::Target;
        }
        self.before = Some(now);
        self.seen.devices = devices.unwrap_or_default();
        (self.seen.volumes, self.seen.ports) = exports.unwrap_or_default();
        self.seen.host_names = HostNames::read(system);
        self.time = utc(system.clock().real);
        self.select(self.selected);
        Ok(())
    }

    /// Takes a sample unless paused; an error is shown.
    pub fn look_again(&mut self, system: &dyn System) {
        if self.is_paused {
            return;
        }
        self.message = None;
        if let Err(error) = self.look(system) {
            self.message = Some(error.message);
        }
    }

    /// Returns the number of rows that can be selected.
    fn choices(&self) -> usize {
        match self.view {
            View::Disks => self.seen.devices.len(),
            View::Paths => tables::paths(&self.seen).rows.len(),
            View::Target => self.seen.volumes.len(),
            View::Latency => tables::latency(&self.seen).rows.len(),
        }
    }

    fn select(&mut self, number: usize) {
        self.selected = number.min(self.choices().saturating_sub(1));
    }

    fn go_to(&mut self, view: View) {
        self.view = view;
        self.selected = 0;
    }

    /// Carries out the command of a key; returns whether to continue.
    pub fn press(&mut self, system: &dyn System, key: KeyEvent) -> bool {
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt || key.code == KeyCode::Char('q') {
            return false;
        }
        if std::mem::take(&mut self.shows_help) {
            return true;
        }
        self.message = None;
        match key.code {
            KeyCode::Esc => return false,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Tab | KeyCode::Right => self.go_to(self.view.next()),
            KeyCode::Char('1' | 'd') => self.go_to(View::Disks),
            KeyCode::Char('2' | 'p') => self.go_to(View::Paths),
            KeyCode::Char('3' | 't') => self.go_to(View::Target),
            KeyCode::Char('4' | 'l') => self.go_to(View::Latency),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Char('+') => self.set_interval(self.interval * 2),
            KeyCode::Char('-') => self.set_interval(self.interval / 2),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('m') => self.switch_measuring(system),
            _ => (),
        }
        true
    }

    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval.clamp(Duration::from_millis(250), Duration::from_secs(3600));
    }

    /// Starts or stops measuring the durations of requests of all disks and volumes.
    fn switch_measuring(&mut self, system: &dyn System) {
        let on = !self.is_measuring();
        let switch = || -> Result<()> {
            let disks = initiator::selected(system, None, "counters")?
                .into_iter()
                .flatten();
            let volumes = target::selected(system, None)?.into_iter().flatten();
            for group in disks.chain(volumes) {
                Times::read(&group, Some(on))?;
            }
            Ok(())
        };
        self.message = Some(match switch() {
            Ok(()) if on => "times are measured from now on; m stops".to_owned(),
            Ok(()) => "times are not measured any more".to_owned(),
            Err(error) => error.message,
        });
    }

    /// Returns whether the times of anything are measured.
    pub(super) fn is_measuring(&self) -> bool {
        let samples = self
            .before
            .iter()
            .flat_map(|(disks, volumes)| disks.samples.iter().chain(&volumes.samples));
        samples.into_iter().any(|sample| sample.times.is_some())
    }
}
