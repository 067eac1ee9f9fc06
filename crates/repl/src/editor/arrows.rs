//! Up and down keys: move through the lines of a statement, through the history, or through history with the same
//! prefix.

use rustyline::{
    Cmd, ConditionalEventHandler, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount, history::History,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn bind<H: Helper, I: History>(editor: &mut Editor<H, I>) {
    let browsing = Arc::new(AtomicBool::new(false));
    for (key, up) in [(KeyCode::Up, true), (KeyCode::Down, false)] {
        let handler = Arrow { up, browsing: browsing.clone() };
        editor.bind_sequence(
            Event::from(KeyEvent(key, Modifiers::NONE)),
            EventHandler::Conditional(Box::new(handler)),
        );
    }
    editor.bind_sequence(Event::Any, EventHandler::Conditional(Box::new(Other(browsing))));
}

struct Arrow {
    up: bool,
    /// True while the line is an unedited one of the history.
    browsing: Arc<AtomicBool>,
}

impl ConditionalEventHandler for Arrow {
    fn handle(
        &self,
        _: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let (line, at) = (context.line(), context.pos());
        let beyond = if self.up { &line[..at] } else { &line[at..] };
        if beyond.contains('\n') {
            return None;
        }
        if line.is_empty() {
            self.browsing.store(true, Ordering::Relaxed);
        }
        Some(match (self.browsing.load(Ordering::Relaxed), self.up) {
            (true, true) => Cmd::PreviousHistory,
            (true, false) => Cmd::NextHistory,
            (false, true) => Cmd::HistorySearchBackward,
            (false, false) => Cmd::HistorySearchForward,
        })
    }
}

/// Any other key: the line is the user's own from now on.
struct Other(Arc<AtomicBool>);

impl ConditionalEventHandler for Other {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(false, Ordering::Relaxed);
        None
    }
}
