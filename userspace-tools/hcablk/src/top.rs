// SPDX-License-Identifier: GPL-2.0

//! `hcablk top`: shows the activity of disks, paths and volumes on the whole screen.
//!
//! | module | holds |
//! |---|---|
//! | `model` | the state of the screen, and how keys change it |
//! | `view` | drawing the screen |
//! | `tables` | the rows of its tables |
//! | `seen` | the values of the last sample |

mod model;
mod seen;
mod tables;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;

use crate::error::{Error, Kind, Result};
use crate::output::{Outcome, Report};
use crate::system::System;

pub use model::Model;
pub use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
pub use view::draw;

/// The longest time until a signal is noticed.
const SIGNAL_CHECK: Duration = Duration::from_millis(250);

/// Runs `hcablk top`, until it is ended by a key or a signal.
pub fn run(system: &dyn System, interval: Duration) -> Result<Outcome> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::new(
            Kind::Usage,
            "top needs a terminal as standard input and output",
        )
        .advise("For programs and files: hcablk stats 1, hcablk stats 1 --json"));
    }
    let fail = |error: io::Error| {
        Error::new(Kind::Failed, format!("cannot use the terminal: {error}"))
            .advise("Is TERM set? For terminals that cannot do this: hcablk stats 1")
    };
    let mut model = Model::new(system, interval);
    model.look(system)?;
    let mut terminal = ratatui::try_init().map_err(fail)?;
    let result = show(system, &mut model, &mut terminal).map_err(fail);
    ratatui::restore();
    result?;
    Ok(Outcome::new(Report::Printed))
}

fn show(system: &dyn System, model: &mut Model, terminal: &mut DefaultTerminal) -> io::Result<()> {
    let mut due = system.now() + model.interval();
    while !system.interrupted() {
        terminal.draw(|frame| draw(frame, model))?;
        let left = due.saturating_sub(system.now());
        if event::poll(left.min(SIGNAL_CHECK))? {
            if let Event::Key(key) = event::read()? {
                if key.kind != KeyEventKind::Release && !model.press(system, key) {
                    break;
                }
                due = due.min(system.now() + model.interval());
            }
        }
        if system.now() >= due {
            due = system.now() + model.interval();
            model.look_again(system);
        }
    }
    Ok(())
}
